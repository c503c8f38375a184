//! What a store or disk gives to a plain client: the ceiling that the library is measured against, in the same run.

use crate::state::{ITERATION, targets};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use reshard::format::{Metadata, SavedLayout};
use reshard::plan::{LoadPlanner, LoadRules};
use reshard::storage::{Depth, OpenOptions};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::runtime::Runtime;

pub fn client(endpoint: &str, bucket: &str, key: &str, secret: &str) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_bucket_name(bucket)
        .with_region("us-east-1")
        .with_access_key_id(key)
        .with_secret_access_key(secret)
        .with_allow_http(true)
        .build()
        .unwrap()
}

/// The committed layout and the attempt's directory below the run.
pub fn layout(uri: &str, storage: &OpenOptions) -> (SavedLayout, String) {
    let storage = reshard::storage::open(uri, storage).unwrap();
    Runtime::new().unwrap().block_on(async {
        let iteration = reshard::storage::StoragePath::parse(ITERATION.to_string()).unwrap();
        let commit = iteration.join("commit.json").unwrap();
        let (bytes, _) = storage.read_all(&commit, 1 << 20).await.unwrap();
        let commit =
            reshard::format::Commit::parse("commit.json", &bytes).unwrap().committed("commit.json").unwrap();
        let path = iteration.join(&commit.metadata().path).unwrap();
        let (bytes, _) = storage.read_all(&path, 1 << 30).await.unwrap();
        let metadata = Metadata::parse("metadata.json", &bytes).unwrap();
        let directory = path.parent().unwrap();
        assert!(!storage.list(Some(&directory), Depth::All).await.unwrap().objects.is_empty());
        (metadata.layout, directory.as_str().to_owned())
    })
}

/// The ranges that a load onto `tp` ranks fetches, of all ranks together: file index and bytes.
pub fn ranges(layout: &SavedLayout, tp: u64, verify: bool) -> Vec<(u32, Range<u64>)> {
    let rules = LoadRules { verify, ..LoadRules::default() };
    targets(tp)
        .iter()
        .flat_map(|dict| LoadPlanner::new(layout, &rules).plan(dict).unwrap().requests)
        .map(|request| (request.file, request.range))
        .collect()
}

/// Seconds to GET the ranges with that many connections.
pub fn get(
    client: &AmazonS3,
    prefix: &str,
    layout: &SavedLayout,
    ranges: &[(u32, Range<u64>)],
    connections: usize,
) -> f64 {
    Runtime::new().unwrap().block_on(async {
        let start = Instant::now();
        let total: u64 = stream::iter(ranges)
            .map(|(file, range)| {
                let path = Path::from(format!("{prefix}/{}", layout.files[*file as usize].path));
                let (client, range) = (client.clone(), range.clone());
                async move { tokio::spawn(async move { client.get_range(&path, range).await }).await.unwrap() }
            })
            .buffer_unordered(connections)
            .map_ok(|bytes| bytes.len() as u64)
            .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
            .await
            .unwrap();
        assert_eq!(total, ranges.iter().map(|(_, range)| range.end - range.start).sum::<u64>());
        start.elapsed().as_secs_f64()
    })
}

/// Seconds to put objects of these lengths in parts of 8 MiB with that many connections.
pub fn put(client: &AmazonS3, prefix: &str, lengths: &[u64], connections: usize) -> f64 {
    use object_store::multipart::MultipartStore;
    const PART: u64 = 8 << 20;
    Runtime::new().unwrap().block_on(async {
        let buffer = bytes::Bytes::from(vec![7u8; PART as usize]);
        let start = Instant::now();
        let mut uploads = Vec::new();
        for index in 0..lengths.len() {
            let path = Path::from(format!("{prefix}/plain-{index}"));
            uploads.push((client.create_multipart(&path).await.unwrap(), path));
        }
        let parts: Vec<(usize, usize, u64)> = lengths
            .iter()
            .enumerate()
            .flat_map(|(file, &length)| {
                (0..length.div_ceil(PART))
                    .map(move |part| (file, part as usize, PART.min(length - part * PART)))
            })
            .collect();
        let done: Vec<(usize, usize, object_store::multipart::PartId)> = stream::iter(parts)
            .map(|(file, part, length)| {
                let (id, path) = uploads[file].clone();
                let (client, payload) = (client.clone(), PutPayload::from(buffer.slice(..length as usize)));
                async move {
                    let sent = tokio::spawn(async move { client.put_part(&path, &id, part, payload).await });
                    (file, part, sent.await.unwrap().unwrap())
                }
            })
            .buffer_unordered(connections)
            .collect()
            .await;
        for (file, (id, path)) in uploads.iter().enumerate() {
            let mut own: Vec<_> = done.iter().filter(|(of, ..)| *of == file).cloned().collect();
            own.sort_by_key(|(_, part, _)| *part);
            let ids = own.into_iter().map(|(.., id)| id).collect();
            client.complete_multipart(path, id, ids).await.unwrap();
        }
        let seconds = start.elapsed().as_secs_f64();
        for (_, path) in uploads {
            client.delete(&path).await.unwrap();
        }
        seconds
    })
}

/// The files of a layout on disk.
pub fn files(directory: &FilePath, layout: &SavedLayout) -> Vec<File> {
    layout.files.iter().map(|file| File::open(directory.join(&file.path)).unwrap()).collect()
}

/// Drops what the kernel keeps of the files in memory, so that they are read from the disk.
pub fn make_cold(files: &[File]) {
    for file in files {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Seconds to pread the ranges with `threads` threads into memory as large as they are, so that every byte has a place
/// of its own as a tensor's has.
pub fn pread(files: &[File], ranges: &[(u32, Range<u64>)], threads: usize) -> f64 {
    let mut buffers: Vec<Vec<u8>> =
        ranges.iter().map(|(_, range)| vec![1; (range.end - range.start) as usize]).collect();
    let work: Vec<_> = ranges.iter().zip(&mut buffers).map(std::sync::Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ((file, range), buffer) = &mut *item.lock().unwrap();
                    files[*file as usize].read_exact_at(buffer, range.start).unwrap();
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}

/// Seconds to write files of these lengths from memory with one thread each, and fsync them. As a save does, it leaves
/// the files of the time before in place until the new ones are there, so that both sides need as many new pages.
pub fn pwrite(directory: &FilePath, lengths: &[u64]) -> f64 {
    const STEP: usize = 8 << 20;
    let file = |index: usize, name: &str| directory.join(format!("plain-{index}.{name}"));
    let memory: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![7; length as usize]).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (index, bytes) in memory.iter().enumerate() {
            scope.spawn(move || {
                let file = File::create_new(file(index, "new")).unwrap();
                for (step, bytes) in bytes.chunks(STEP).enumerate() {
                    file.write_all_at(bytes, (step * STEP) as u64).unwrap();
                }
                file.sync_all().unwrap();
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    for index in 0..lengths.len() {
        std::fs::rename(file(index, "new"), file(index, "old")).unwrap();
    }
    seconds
}
