use super::{Check, Place, Verdict, checks, ensure, pattern, text};
use crate::{Slot, StorageError};
use std::ops::Range;

pub(super) const CHECKS: &[Check] = checks![
    exact_ranges: Nothing,
    range_past_the_end_is_corrupt: Nothing,
    empty_range_needs_no_object: Nothing,
    slot_beyond_the_range_is_untouched: Nothing,
    short_slot_is_refused: Nothing,
    missing_object_is_not_found: Nothing,
    too_long_for_read_all_is_corrupt: Nothing,
    head_tells_the_length: Nothing,
];

async fn read(
    place: &Place<'_>,
    range: Range<u64>,
    slot_len: usize,
) -> Result<(Slot, crate::Result<()>), String> {
    Ok(place.store.read(&place.path("object")?, range, Box::new(vec![0xEE; slot_len])).await)
}

async fn exact_ranges(place: &Place<'_>) -> Verdict {
    const LEN: u64 = 300_007;
    let whole = pattern(LEN as usize, 1);
    place.put("object", whole.clone()).await?;
    for range in [0..LEN, 0..1, LEN - 1..LEN, 1..LEN, 0..LEN - 1, 65_535..65_537, 100_000..200_000] {
        let len = (range.end - range.start) as usize;
        let (slot, result) = read(place, range.clone(), len).await?;
        result.map_err(text)?;
        ensure!(
            slot.bytes() == &whole[range.start as usize..range.end as usize],
            "{range:?} has other bytes"
        );
    }
    Ok(())
}

async fn range_past_the_end_is_corrupt(place: &Place<'_>) -> Verdict {
    place.put("object", pattern(100, 2)).await?;
    for range in [0..101, 99..101, 100..101, 5_000..5_001] {
        let (_, result) = read(place, range.clone(), 128).await?;
        ensure!(
            matches!(result, Err(StorageError::Corrupt { .. })),
            "reading {range:?} of 100 bytes: expected Corrupt, got {result:?}"
        );
    }
    Ok(())
}

async fn empty_range_needs_no_object(place: &Place<'_>) -> Verdict {
    let (slot, result) = read(place, 7..7, 0).await?;
    ensure!(result.is_ok() && slot.bytes().is_empty(), "an empty range failed: {result:?}");
    Ok(())
}

async fn slot_beyond_the_range_is_untouched(place: &Place<'_>) -> Verdict {
    place.put("object", pattern(100, 3)).await?;
    let (slot, result) = read(place, 10..20, 64).await?;
    result.map_err(text)?;
    ensure!(slot.bytes().len() == 64, "the slot came back with {} bytes", slot.bytes().len());
    ensure!(slot.bytes()[..10] == pattern(100, 3)[10..20], "other bytes");
    ensure!(slot.bytes()[10..].iter().all(|byte| *byte == 0xEE), "bytes beyond the range were written");
    Ok(())
}

async fn short_slot_is_refused(place: &Place<'_>) -> Verdict {
    place.put("object", pattern(100, 4)).await?;
    let (slot, result) = read(place, 0..100, 99).await?;
    ensure!(
        matches!(result, Err(StorageError::InvalidInput { .. })) && slot.bytes().len() == 99,
        "expected InvalidInput and the slot back, got {result:?} and {} bytes",
        slot.bytes().len()
    );
    Ok(())
}

async fn missing_object_is_not_found(place: &Place<'_>) -> Verdict {
    let path = place.path("object")?;
    let (slot, result) = read(place, 0..4, 4).await?;
    ensure!(matches!(&result, Err(error) if error.is_not_found()), "read: {result:?}");
    ensure!(slot.bytes().len() == 4, "the slot didn't come back");
    let result = place.store.read_all(&path, 10).await;
    ensure!(matches!(&result, Err(error) if error.is_not_found()), "read_all: {result:?}");
    let result = place.store.head(&path).await;
    ensure!(matches!(&result, Err(error) if error.is_not_found()), "head: {result:?}");
    Ok(())
}

async fn too_long_for_read_all_is_corrupt(place: &Place<'_>) -> Verdict {
    place.put("object", pattern(100, 5)).await?;
    let path = place.path("object")?;
    let result = place.store.read_all(&path, 99).await;
    ensure!(matches!(result, Err(StorageError::Corrupt { .. })), "limit 99 of 100 bytes: {result:?}");
    let (bytes, _) = place.store.read_all(&path, 100).await.map_err(text)?;
    ensure!(bytes == pattern(100, 5), "other bytes");
    Ok(())
}

async fn head_tells_the_length(place: &Place<'_>) -> Verdict {
    place.put("object", pattern(12_345, 6)).await?;
    let info = place.store.head(&place.path("object")?).await.map_err(text)?;
    ensure!(info.len == 12_345 && info.path == place.path("object")?, "{info:?}");
    Ok(())
}
