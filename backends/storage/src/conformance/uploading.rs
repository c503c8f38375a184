use super::{Check, Place, Verdict, checks, ensure, pattern, text};
use crate::{Depth, StorageError, Upload, UploadShape};
use futures::future::try_join_all;

pub(super) const CHECKS: &[Check] = checks![
    upload_of_one_part: Nothing,
    upload_of_parts_in_any_order: Nothing,
    upload_without_bytes: Nothing,
    upload_replaces_an_object: Nothing,
    part_sent_again_replaces: Nothing,
    aborted_upload_leaves_nothing: Nothing,
    dropped_upload_leaves_nothing: Nothing,
    incomplete_upload_is_refused: Nothing,
    wrong_parts_are_refused: Nothing,
];

async fn start(place: &Place<'_>, len: usize, part_len: u64) -> Result<Upload, String> {
    let shape = UploadShape::fit(len as u64, part_len, place.store.capabilities());
    place.store.start_multipart(&place.path("object")?, shape).await.map_err(text)
}

/// The bytes of part `index` of `whole`.
fn part(upload: &Upload, whole: &[u8], index: u64) -> Result<Vec<u8>, String> {
    let range = upload.shape().part(index).ok_or("no such part")?;
    Ok(whole[range.start as usize..range.end as usize].to_vec())
}

async fn send(upload: &Upload, whole: &[u8], index: u64) -> Verdict {
    upload.put_part(index, part(upload, whole, index)?.into()).await.map_err(text)
}

async fn nothing_there(place: &Place<'_>) -> Verdict {
    let result = place.store.head(&place.path("object")?).await;
    ensure!(matches!(&result, Err(error) if error.is_not_found()), "there is an object: {result:?}");
    let listing = place.store.list(Some(&place.prefix), Depth::All).await.map_err(text)?;
    ensure!(listing.objects.is_empty(), "something is listed: {listing:?}");
    Ok(())
}

async fn upload_of_one_part(place: &Place<'_>) -> Verdict {
    let whole = pattern(1000, 1);
    let upload = start(place, whole.len(), 1 << 20).await?;
    send(&upload, &whole, 0).await?;
    nothing_there(place).await?;
    let durable = upload.complete().await.map_err(text)?;
    ensure!(durable.len() == 1000, "{durable:?}");
    ensure!(place.get("object").await? == whole, "other bytes");
    Ok(())
}

async fn upload_of_parts_in_any_order(place: &Place<'_>) -> Verdict {
    // The shortest parts that the store takes, the last one shorter still; last first, then all others at
    // once.
    let part_len = place.store.capabilities().min_part_len.max(100_000);
    let whole = pattern(part_len as usize * 3 + 12_345, 2);
    let upload = start(place, whole.len(), part_len).await?;
    let last = upload.shape().parts() - 1;
    send(&upload, &whole, last).await?;
    try_join_all((0..last).rev().map(|index| send(&upload, &whole, index))).await?;
    upload.complete().await.map_err(text)?;
    let info = place.store.head(&place.path("object")?).await.map_err(text)?;
    ensure!(info.len == whole.len() as u64, "{} bytes instead of {}", info.len, whole.len());
    ensure!(place.get("object").await? == whole, "the parts are not in order");
    Ok(())
}

async fn upload_without_bytes(place: &Place<'_>) -> Verdict {
    let upload = start(place, 0, 1 << 20).await?;
    upload.complete().await.map_err(text)?;
    ensure!(place.get("object").await?.is_empty(), "an empty upload has bytes");
    Ok(())
}

async fn upload_replaces_an_object(place: &Place<'_>) -> Verdict {
    place.put("object", pattern(5000, 3)).await?;
    let whole = pattern(1000, 4);
    let upload = start(place, whole.len(), 1 << 20).await?;
    send(&upload, &whole, 0).await?;
    ensure!(place.get("object").await? == pattern(5000, 3), "replaced before the upload was complete");
    upload.complete().await.map_err(text)?;
    ensure!(place.get("object").await? == whole, "not replaced");
    Ok(())
}

async fn part_sent_again_replaces(place: &Place<'_>) -> Verdict {
    let upload = start(place, 1000, 1 << 20).await?;
    send(&upload, &pattern(1000, 5), 0).await?;
    send(&upload, &pattern(1000, 6), 0).await?;
    upload.complete().await.map_err(text)?;
    ensure!(place.get("object").await? == pattern(1000, 6), "the first bytes of the part were kept");
    Ok(())
}

async fn aborted_upload_leaves_nothing(place: &Place<'_>) -> Verdict {
    let upload = start(place, 1000, 1 << 20).await?;
    send(&upload, &pattern(1000, 7), 0).await?;
    upload.abort().await.map_err(text)?;
    nothing_there(place).await
}

async fn dropped_upload_leaves_nothing(place: &Place<'_>) -> Verdict {
    let upload = start(place, 1000, 1 << 20).await?;
    send(&upload, &pattern(1000, 8), 0).await?;
    drop(upload);
    nothing_there(place).await
}

async fn incomplete_upload_is_refused(place: &Place<'_>) -> Verdict {
    let part_len = place.store.capabilities().min_part_len.max(1000);
    let upload = start(place, part_len as usize + 1, part_len).await?;
    upload.put_part(1, vec![0].into()).await.map_err(text)?;
    let result = upload.complete().await;
    ensure!(
        matches!(result, Err(StorageError::InvalidInput { .. })),
        "expected InvalidInput, got {result:?}"
    );
    nothing_there(place).await
}

async fn wrong_parts_are_refused(place: &Place<'_>) -> Verdict {
    let upload = start(place, 1000, 1 << 20).await?;
    for (index, len) in [(0, 999), (0, 1001), (1, 1000), (u64::MAX, 1)] {
        let result = upload.put_part(index, vec![0; len].into()).await;
        ensure!(
            matches!(result, Err(StorageError::InvalidInput { .. })),
            "{len} bytes as part {index}: expected InvalidInput, got {result:?}"
        );
    }
    upload.abort().await.map_err(text)
}
