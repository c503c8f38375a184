use super::{Check, Place, Verdict, checks, ensure, pattern, text};
use crate::{Deletion, Depth};

pub(super) const CHECKS: &[Check] = checks![
    deleting_twice: Nothing,
    deleting_several_at_once: Nothing,
    deleting_a_prefix_keeps_its_siblings: Nothing,
];

async fn deleting_twice(place: &Place<'_>) -> Verdict {
    place.put("object", pattern(10, 1)).await?;
    let path = place.path("object")?;
    let first = place.store.delete(&path).await.map_err(text)?;
    ensure!(first != Deletion::Absent, "the object is said to have been absent");
    let second = place.store.delete(&path).await.map_err(text)?;
    ensure!(second != Deletion::Deleted, "it is said to have been there again");
    let result = place.store.head(&path).await;
    ensure!(matches!(&result, Err(error) if error.is_not_found()), "still there: {result:?}");
    Ok(())
}

async fn deleting_several_at_once(place: &Place<'_>) -> Verdict {
    for name in ["a", "b/c", "keep"] {
        place.put(name, pattern(10, 1)).await?;
    }
    let paths = [place.path("a")?, place.path("absent")?, place.path("b/c")?];
    let deletions = place.store.delete_many(&paths).await.map_err(text)?;
    ensure!(deletions.len() == 3, "{} answers for 3 paths", deletions.len());
    ensure!(deletions[0] != Deletion::Absent && deletions[1] != Deletion::Deleted, "{deletions:?}");
    let listing = place.store.list(Some(&place.prefix), Depth::All).await.map_err(text)?;
    ensure!(
        listing.objects.len() == 1 && listing.objects[0].path == place.path("keep")?,
        "left: {listing:?}"
    );
    Ok(())
}

async fn deleting_a_prefix_keeps_its_siblings(place: &Place<'_>) -> Verdict {
    for name in ["iter_1/a", "iter_1/b/c", "iter_10/a", "iter_1.txt", "iter_2/a"] {
        place.put(name, pattern(10, 1)).await?;
    }
    let deleted = place.store.delete_prefix(&place.path("iter_1")?).await.map_err(text)?;
    ensure!(deleted == 2, "{deleted} deleted instead of 2");
    let left = place.store.list(Some(&place.prefix), Depth::All).await.map_err(text)?;
    let left: Vec<_> =
        left.objects.iter().filter_map(|object| object.path.strip_prefix(&place.prefix)).collect();
    ensure!(left == ["iter_1.txt", "iter_10/a", "iter_2/a"], "left: {left:?}");
    Ok(())
}
