//! Reaching the store, and each thing that one may or may not be allowed there.

use super::super::exit::Failure;
use super::Probe;
use super::check::{Bad, Checks};
use reshard_storage::{Depth, Payload, Slot, UploadShape};
use std::time::{Duration, Instant, SystemTime};

const OBJECT: &str = "object";
const TEXT: &str = "written by `reshard doctor`; it may be deleted";
/// The upload's parts, and so twice this is the object whose reading is timed.
const PART_BYTES: usize = 8 << 20;
/// Clocks that are farther apart deserve a word: times in listings will look wrong.
const CLOCK_WARNING: Duration = Duration::from_secs(60);

/// An object of known bytes.
pub(super) struct ProbeObject {
    pub(super) path: reshard_storage::StoragePath,
    pub(super) bytes: Vec<u8>,
}

/// Whether there is a store that answers these credentials.
pub(super) async fn reach(probe: &Probe, checks: &mut Checks<'_>) -> bool {
    let allow = "to list: s3:ListBucket on the bucket, storage.objects.list, or Storage Blob Data Reader";
    let list = async {
        let start = Instant::now();
        let page = probe.storage.list_page(None, Depth::Children, None).await?;
        let found = page.listing.prefixes.len() + page.listing.objects.len();
        let (ms, more) = (start.elapsed().as_secs_f64() * 1e3, if page.next.is_some() { "+" } else { "" });
        Ok(((), format!("{found}{more} names, {ms:.1} ms")))
    };
    checks.attempt("list", allow, list).await.is_some()
}

/// Whether an object can be written.
pub(super) async fn write(probe: &Probe, checks: &mut Checks<'_>) -> Result<bool, Failure> {
    let path = probe.path(OBJECT)?;
    let write = async {
        probe.storage.put(&path, Payload::from(TEXT)).await?;
        Ok(((), format!("{} bytes", TEXT.len())))
    };
    let allow =
        "to write: s3:PutObject on the prefix, storage.objects.create, or Storage Blob Data Contributor";
    Ok(checks.attempt("write", allow, write).await.is_some())
}

/// Whether the object that was written can be read, looked up and found.
pub(super) async fn read(probe: &Probe, checks: &mut Checks<'_>) -> Result<bool, Failure> {
    let path = probe.path(OBJECT)?;
    let read = async {
        let (bytes, _) = probe.storage.read_all(&path, TEXT.len() as u64).await?;
        match bytes == TEXT {
            true => Ok(((), "the bytes that were written".to_owned())),
            false => Err(Bad::Behaviour {
                detail: "the store gives other bytes than were written to it just before".to_owned(),
                fix: "take away the cache or the gateway between this machine and the store",
            }),
        }
    };
    let allow = "to read: s3:GetObject on the prefix, storage.objects.get, or Storage Blob Data Reader";
    let mut works = checks.attempt("read", allow, read).await.is_some();
    let mut modified = None;
    let find = async {
        let listing = probe.storage.list(Some(&probe.prefix), Depth::All).await?;
        let info = probe.storage.head(&path).await?;
        if info.len != TEXT.len() as u64 || !listing.objects.iter().any(|object| object.path == path) {
            return Err(Bad::Behaviour {
                detail: "an object that was just written is not listed".to_owned(),
                fix: "use a store whose listings show at once what was written; a save trusts them",
            });
        }
        modified = Some(info.modified);
        Ok(((), "listed with its length right after the write".to_owned()))
    };
    works &= checks.attempt("find", allow, find).await.is_some();
    if let Some(modified) = modified.filter(|_| !probe.storage.capabilities().local) {
        clock(modified, SystemTime::now(), checks).await;
    }
    Ok(works)
}

/// Compares the store's clock with this machine's.
async fn clock(modified: SystemTime, now: SystemTime, checks: &mut Checks<'_>) {
    let apart = now.duration_since(modified).unwrap_or_else(|earlier| earlier.duration());
    if apart > CLOCK_WARNING {
        let detail = format!("this machine and the store are {} s apart", apart.as_secs());
        let fix = "set this machine's clock (NTP); S3 refuses requests that are 15 minutes off";
        checks.warn("clock", detail, fix);
    } else {
        // Stores count whole seconds.
        let detail = format!("within {} s of the store's", apart.as_secs() + 1);
        checks.attempt("clock", "", async { Ok(((), detail)) }).await;
    }
}

/// Whether an object can be uploaded in parts, read in ranges, and an upload given up.
pub(super) async fn multipart(
    probe: &Probe,
    checks: &mut Checks<'_>,
) -> Result<Option<ProbeObject>, Failure> {
    let allow = "to write and to give up: s3:PutObject and s3:AbortMultipartUpload, storage.objects.create, or \
                 Storage Blob Data Contributor";
    let path = probe.path("parts")?;
    let bytes = noise(2 * PART_BYTES);
    let shape = UploadShape::fit(bytes.len() as u64, PART_BYTES as u64, probe.storage.capabilities());
    let upload = async {
        let start = Instant::now();
        let upload = probe.storage.start_multipart(&path, shape).await?;
        for index in 0..shape.parts() {
            let part = shape.part(index).and_then(|part| bytes.get(part.start as usize..part.end as usize));
            upload.put_part(index, part.unwrap_or_default().to_vec().into()).await?;
        }
        upload.complete().await?;
        let mb_per_second = bytes.len() as f64 / 1e6 / start.elapsed().as_secs_f64();
        probe.storage.start_multipart(&probe.path("given-up")?, shape).await?.abort().await?;
        Ok(((), format!("{} parts one after the other, {mb_per_second:.1} MB/s", shape.parts())))
    };
    if checks.attempt("upload in parts", allow, upload).await.is_none() {
        return Ok(None);
    }
    let read = async {
        // Across the border of the parts.
        let range = PART_BYTES as u64 - 1000..PART_BYTES as u64 + 1000;
        let slot: Slot = Box::new(vec![0u8; 2000]);
        let (slot, result) = probe.storage.read(&path, range.clone(), slot).await;
        result?;
        if Some(slot.bytes()) != bytes.get(range.start as usize..range.end as usize) {
            return Err(Bad::Behaviour {
                detail: format!("a read of bytes {}..{} gives other bytes", range.start, range.end),
                fix: "take away the cache or the gateway between this machine and the store",
            });
        }
        Ok(((), "the bytes that were uploaded".to_owned()))
    };
    let read = checks.attempt("read a range", allow, read).await;
    Ok(read.map(|()| ProbeObject { path, bytes }))
}

/// Deletes what was written and looks whether it is gone.
pub(super) async fn clean_up(probe: &Probe, checks: &mut Checks<'_>) {
    let allow =
        "to delete: s3:DeleteObject on the prefix, storage.objects.delete, or Storage Blob Data Contributor";
    let delete = async {
        let deleted = probe.storage.delete_prefix(&probe.prefix).await?;
        let left = probe.storage.list(Some(&probe.prefix), Depth::All).await?.objects.len();
        match (deleted, left) {
            (_, 1..) => Err(Bad::Behaviour {
                detail: format!("{left} objects are still below {} after their deletion", probe.prefix),
                fix: "delete them by hand; old checkpoints could not be pruned here either",
            }),
            (deleted, 0) => Ok((deleted, format!("{deleted} objects"))),
        }
    };
    checks.attempt("delete", allow, delete).await;
}

/// Bytes that nothing on the way can compress.
fn noise(length: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = vec![0u8; length];
    for piece in bytes.chunks_mut(8) {
        // Marsaglia's xorshift64.
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        for (byte, noise) in piece.iter_mut().zip(word.to_le_bytes()) {
            *byte = noise;
        }
    }
    bytes
}
