use super::{Check, Place, Verdict, checks, ensure, pattern};
use crate::Payload;
use bytes::Bytes;

pub(super) const CHECKS: &[Check] = checks![
    overwrite_replaces: Nothing,
    pieces_become_one_object: Nothing,
    object_without_bytes: Nothing,
    every_legal_character: Nothing,
];

async fn overwrite_replaces(place: &Place<'_>) -> Verdict {
    for (len, seed) in [(1000, 1), (10, 2), (5000, 3)] {
        let durable = place.put("object", pattern(len, seed)).await?;
        ensure!(durable.len() == len as u64, "{len} bytes written, {} durable", durable.len());
        ensure!(place.get("object").await? == pattern(len, seed), "old bytes after overwriting with {len}");
    }
    Ok(())
}

async fn pieces_become_one_object(place: &Place<'_>) -> Verdict {
    let pieces = [pattern(10, 1), Vec::new(), pattern(70_000, 2), pattern(1, 3)];
    let payload: Payload = pieces.iter().cloned().map(Bytes::from).collect();
    place.put("object", payload).await?;
    ensure!(place.get("object").await? == pieces.concat(), "the pieces are not in order");
    Ok(())
}

async fn object_without_bytes(place: &Place<'_>) -> Verdict {
    place.put("object", Vec::new()).await?;
    ensure!(place.get("object").await?.is_empty(), "an empty object has bytes");
    Ok(())
}

/// Keys that need escaping in a URL, and pairs that become one when they are escaped once too often or too
/// little.
async fn every_legal_character(place: &Place<'_>) -> Verdict {
    let names = [
        "a b",
        "a%20b",
        "a+b",
        "a%2Bb",
        "a#b",
        "a?b=c&d",
        "ä-ö-ü",
        "日本語",
        "🦀",
        "a:b",
        "a=b",
        "a@b",
        "a!b",
        "a$b",
        "a'b",
        "(a)",
        "a*b",
        "a,b",
        "a;b",
        "[a]",
        "{a}",
        "a|b",
        "a^b",
        "a`b",
        "a~b",
        "a<b>",
        "a\"b",
        "%",
        "%25",
        "..a",
        "-",
        "layer.0.weight",
        "A",
        "a",
    ];
    for (index, name) in names.iter().enumerate() {
        place.put(&format!("{name}/{name}"), pattern(32, index as u32)).await?;
    }
    for (index, name) in names.iter().enumerate() {
        let bytes = place.get(&format!("{name}/{name}")).await?;
        ensure!(bytes == pattern(32, index as u32), "{name:?} was overwritten by another name");
    }
    let listing = place.store.list(Some(&place.prefix), crate::Depth::All).await.map_err(super::text)?;
    let listed: std::collections::BTreeSet<_> =
        listing.objects.iter().map(|object| object.path.as_str()).collect();
    for name in names {
        let path = place.path(&format!("{name}/{name}"))?;
        ensure!(listed.contains(path.as_str()), "{name:?} is not listed under its own name");
    }
    ensure!(listed.len() == names.len(), "{} names listed instead of {}", listed.len(), names.len());
    Ok(())
}
