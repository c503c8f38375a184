use super::{Check, Place, Verdict, checks, ensure, pattern, text};
use crate::{Depth, Listing, StoragePath};
use futures::{StreamExt, TryStreamExt, stream};

pub(super) const CHECKS: &[Check] = checks![
    listing_by_depth: Nothing,
    sibling_with_a_longer_name_is_not_below: Nothing,
    listing_where_nothing_is: Nothing,
    listing_over_many_pages: Nothing,
];

async fn list(place: &Place<'_>, below: &str, depth: Depth) -> Result<Listing, String> {
    let prefix = if below.is_empty() { place.prefix.clone() } else { place.path(below)? };
    place.store.list(Some(&prefix), depth).await.map_err(text)
}

/// Object and prefix names relative to the place.
fn names(place: &Place<'_>, listing: &Listing) -> (Vec<String>, Vec<String>) {
    let relative = |path: &StoragePath| path.strip_prefix(&place.prefix).unwrap_or("(outside)").to_owned();
    let objects = listing.objects.iter().map(|object| relative(&object.path)).collect();
    (objects, listing.prefixes.iter().map(relative).collect())
}

async fn listing_by_depth(place: &Place<'_>) -> Verdict {
    for (name, len) in [("top", 1), ("a/one", 2), ("a/two", 3), ("a/b/three", 4), ("c/d/e/four", 5)] {
        place.put(name, pattern(len, 1)).await?;
    }
    let all = list(place, "", Depth::All).await?;
    ensure!(
        names(place, &all)
            == (["a/b/three", "a/one", "a/two", "c/d/e/four", "top"].map(String::from).into(), vec![]),
        "all: {all:?}"
    );
    ensure!(all.objects.iter().map(|object| object.len).eq([4, 2, 3, 5, 1]), "lengths: {all:?}");
    let children = list(place, "", Depth::Children).await?;
    ensure!(
        names(place, &children) == (vec!["top".into()], vec!["a".into(), "c".into()]),
        "children: {children:?}"
    );
    let children = list(place, "a", Depth::Children).await?;
    ensure!(
        names(place, &children) == (vec!["a/one".into(), "a/two".into()], vec!["a/b".into()]),
        "children of a: {children:?}"
    );
    Ok(())
}

async fn sibling_with_a_longer_name_is_not_below(place: &Place<'_>) -> Verdict {
    for name in ["iter_1/x", "iter_10/x", "iter_1.txt"] {
        place.put(name, pattern(1, 1)).await?;
    }
    let below = list(place, "iter_1", Depth::All).await?;
    ensure!(names(place, &below).0 == ["iter_1/x"], "below iter_1: {below:?}");
    let children = list(place, "", Depth::Children).await?;
    ensure!(names(place, &children).1 == ["iter_1", "iter_10"], "{children:?}");
    // An object is not below itself.
    let below = list(place, "iter_1.txt", Depth::All).await?;
    ensure!(below == Listing::default(), "below an object: {below:?}");
    Ok(())
}

async fn listing_where_nothing_is(place: &Place<'_>) -> Verdict {
    for depth in [Depth::All, Depth::Children] {
        let listing = list(place, "nowhere", depth).await?;
        ensure!(listing == Listing::default(), "{listing:?}");
    }
    Ok(())
}

async fn listing_over_many_pages(place: &Place<'_>) -> Verdict {
    // More than the 1,000 that S3 and GCS put on a page, as objects and as prefixes.
    const OBJECTS: usize = 1_050;
    let puts = (0..OBJECTS).map(|i| async move {
        let name = if i % 2 == 0 { format!("flat-{i:05}") } else { format!("deep-{i:05}/x") };
        place.put(&name, Vec::new()).await.map(drop)
    });
    stream::iter(puts).buffer_unordered(32).try_collect::<Vec<_>>().await?;
    let all = list(place, "", Depth::All).await?;
    ensure!(all.objects.len() == OBJECTS, "{} of {OBJECTS} objects listed", all.objects.len());
    ensure!(all.objects.is_sorted_by(|a, b| a.path < b.path), "not sorted, or some are listed twice");
    let children = list(place, "", Depth::Children).await?;
    let counts = (children.objects.len(), children.prefixes.len());
    ensure!(counts == (OBJECTS / 2, OBJECTS / 2), "{counts:?} objects and prefixes");
    Ok(())
}
