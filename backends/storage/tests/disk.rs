//! What only a disk does: durability in the right order, a full disk, names in progress, keys that collide.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{
    Depth, DiskBackend, Expect, Outcome, Payload, PutOutcome, StorageBackend, StorageError, StoragePath,
    UploadShape, conditional_put,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn path(text: &str) -> StoragePath {
    StoragePath::parse(text).unwrap()
}

fn disk(root: &Path) -> DiskBackend {
    DiskBackend::new(root).unwrap()
}

/// Names of the files below `folder` that are no objects.
fn temporaries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(temporaries(&entry.path()));
        } else if entry.file_name().to_string_lossy().starts_with(".reshard-tmp-") {
            found.push(entry.path());
        }
    }
    found
}

/// Variable by which a test tells itself, run again under another program, to do its work in a folder.
const FOLDER: &str = "RESHARD_DISK_TEST_FOLDER";

/// This test binary, to run `test` again with its work in `folder`, as arguments of another program.
fn again(test: &str) -> Vec<String> {
    let me = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    vec![me, "--exact".to_owned(), test.to_owned(), "--nocapture".to_owned(), "--test-threads=1".to_owned()]
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A small save: a file in parts, a file in one, and the commit object.
async fn save(store: &dyn StorageBackend) {
    let upload =
        store.start_multipart(&path("iter_1/attempt-a/model"), UploadShape::new(5000, 2000)).await.unwrap();
    for index in 0..3 {
        let part = upload.shape().part(index).unwrap();
        upload.put_part(index, vec![index as u8; (part.end - part.start) as usize].into()).await.unwrap();
    }
    upload.complete().await.unwrap();
    store.put(&path("iter_1/attempt-a/metadata.json"), Payload::from("{}")).await.unwrap();
    let commit = path("iter_1/commit.json");
    let within = Duration::from_secs(60);
    let created = conditional_put(store, &commit, "created".into(), &Expect::Absent, within).await.unwrap();
    let Outcome::Written(version) = created else { panic!("{created:?}") };
    let update = Expect::Version(version);
    let updated = conditional_put(store, &commit, "updated".into(), &update, within).await.unwrap();
    assert!(matches!(updated, Outcome::Written(_)), "{updated:?}");
}

/// Traced system calls show that everything is fsynced before the commit object gets its name, and that it
/// then is.
#[test]
fn durable_before_the_commit() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return runtime().block_on(async { save(&disk(&PathBuf::from(folder).join("run"))).await });
    }
    let folder = tempfile::tempdir().unwrap();
    let (log, root) = (folder.path().join("log"), folder.path().join("run"));
    let traced = Command::new("strace")
        .args([
            "-f",
            "-y",
            "-s",
            "4096",
            "-e",
            "trace=fsync,fdatasync,link,linkat,rename,renameat,renameat2",
            "-o",
        ])
        .arg(&log)
        .args(again("durable_before_the_commit"))
        .env(FOLDER, folder.path())
        .output()
        .expect("this test needs strace: install it (apt-get install strace)");
    assert!(traced.status.success(), "{}", String::from_utf8_lossy(&traced.stderr));
    let log = fs::read_to_string(log).unwrap();
    let calls: Vec<&str> = log.lines().filter(|line| line.ends_with("= 0")).collect();

    let name = |relative: &str| format!("{}{relative}", root.display());
    let find = |from: usize, call: &str, text: &str| {
        let found = calls[from..].iter().position(|line| line.contains(call) && line.contains(text));
        from + found
            .unwrap_or_else(|| panic!("no {call} of {text} from call {from} on in:\n{}", calls.join("\n")))
    };
    // `-y` shows a descriptor as `3</path>`; a temporary carries its random name.
    let synced = |from: usize, relative: &str| find(from, "fsync(", &format!("<{}>", name(relative)));
    let named = |from: usize, relative: &str| find(from, "rename(", &format!("\"{}\"", name(relative)));
    let upward =
        |from: usize, folders: &[&str]| folders.iter().fold(from, |from, folder| synced(from, folder));

    // The run's own folder is new, so its name in the folder above has to be durable, too.
    let made = find(0, "fsync(", &format!("<{}>", folder.path().display()));
    let content = find(made, "fsync(", &format!("<{}/.reshard-tmp-", name("/iter_1/attempt-a")));
    let model = named(content, "/iter_1/attempt-a/model");
    let model = upward(model, &["/iter_1/attempt-a", "/iter_1", ""]);
    let content = find(model, "fsync(", &format!("<{}/.reshard-tmp-", name("/iter_1/attempt-a")));
    let metadata = named(content, "/iter_1/attempt-a/metadata.json");
    let metadata = upward(metadata, &["/iter_1/attempt-a", "/iter_1", ""]);
    let content = find(metadata, "fsync(", &format!("<{}/.reshard-tmp-", name("/iter_1")));
    let created = find(content, "link", &format!("\"{}\"", name("/iter_1/commit.json")));
    let created = upward(created, &["/iter_1", ""]);
    let content = find(created, "fsync(", &format!("<{}/.reshard-tmp-", name("/iter_1")));
    let updated = named(content, "/iter_1/commit.json");
    upward(updated, &["/iter_1", ""]);
    // Nothing gets its final name a second time, or before.
    assert_eq!(calls.iter().filter(|line| line.contains("link")).count(), 1);
    assert_eq!(calls.iter().filter(|line| line.contains("rename")).count(), 3);
}

/// A full disk says so, and leaves neither half an object nor the room it took.
#[test]
fn a_full_disk_is_said_so_and_freed() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return runtime().block_on(fill(&PathBuf::from(folder)));
    }
    // A file system of its own, in a namespace of its own so that it is gone afterwards.
    let folder = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=1m none "$0" && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(folder.path())
        .args(again("a_full_disk_is_said_so_and_freed"))
        .env(FOLDER, folder.path())
        .output()
        .expect("this test needs unshare (util-linux)");
    let told =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && told.contains("1 passed"), "on a tmpfs of 1 MiB: {told}");
}

async fn fill(folder: &Path) {
    let store = disk(folder);
    let full = |error: StorageError| {
        matches!(error, StorageError::NoSpace { .. }) && error.to_string().contains("space")
    };
    store.put(&path("old"), vec![1; 1000].into()).await.unwrap();
    let too_much = || Payload::from(vec![0; 2 << 20]);
    assert!(full(store.put(&path("old"), too_much()).await.unwrap_err()));
    assert!(full(store.put_if(&path("new"), too_much(), &Expect::Absent).await.unwrap_err()));
    let shape = UploadShape::new(2 << 20, 2 << 20);
    let upload = store.start_multipart(&path("upload"), shape).await.unwrap();
    assert!(full(upload.put_part(0, too_much()).await.unwrap_err()));
    upload.abort().await.unwrap();
    // The temporaries are gone, so there is room again; and what was there before is whole.
    assert!(temporaries(folder).is_empty());
    store.put(&path("fits"), vec![2; 512 << 10].into()).await.unwrap();
    assert_eq!(store.read_all(&path("old"), 1000).await.unwrap().0, vec![1; 1000]);
    let objects = store.list(None, Depth::All).await.unwrap().objects;
    assert_eq!(objects.iter().map(|object| object.path.as_str()).collect::<Vec<_>>(), ["fits", "old"]);
}

/// A write in progress is invisible; what a crash left of one goes when the objects beside it are deleted.
#[tokio::test(flavor = "multi_thread")]
async fn writes_in_progress_are_hidden_and_orphans_swept() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path());
    let upload = store.start_multipart(&path("a/upload"), UploadShape::new(3, 3)).await.unwrap();
    upload.put_part(0, Payload::from("abc")).await.unwrap();
    assert_eq!(temporaries(folder.path()).len(), 1);
    assert_eq!(store.list(None, Depth::All).await.unwrap(), Default::default());
    assert_eq!(store.list(None, Depth::Children).await.unwrap(), Default::default());

    let orphan = folder.path().join("a/.reshard-tmp-0123456789abcdef");
    fs::write(&orphan, "left by a crash").unwrap();
    store.put(&path("a/object"), Payload::from("x")).await.unwrap();
    store.delete_prefix(&path("a")).await.unwrap();
    assert!(!orphan.exists());
    // The living one is not an orphan.
    upload.complete().await.unwrap();
    assert_eq!(store.read_all(&path("a/upload"), 10).await.unwrap().0, "abc");
    // Without objects the folder is gone, too.
    store.delete(&path("a/upload")).await.unwrap();
    assert!(!folder.path().join("a").exists() && folder.path().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_uploads_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path());
    let upload = store.start_multipart(&path("a/upload"), UploadShape::new(3, 3)).await.unwrap();
    upload.put_part(0, Payload::from("abc")).await.unwrap();
    drop(upload);
    while !temporaries(folder.path()).is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Writers, and deletes that remove folders under them, side by side.
#[tokio::test(flavor = "multi_thread")]
async fn writes_survive_deletes_of_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path());
    let work = (0..8).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for round in 0..30 {
                let object = path(&format!("deep/er/{writer}-{round}"));
                store.put(&object, Payload::from("x")).await.unwrap();
                store.delete(&object).await.unwrap();
            }
        })
    });
    futures::future::try_join_all(work).await.unwrap();
    assert!(!folder.path().join("deep").exists());
}

/// Updates exclude each other. In memory, where a fsync takes no time, so that they come at once and often.
#[tokio::test(flavor = "multi_thread")]
async fn updates_by_many_threads_lose_nothing() {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let store = disk(folder.path());
    let object = path("number");
    store.put(&object, Payload::from("0")).await.unwrap();
    let work = (0..8).map(|writer| {
        let (store, object) = (store.clone(), object.clone());
        tokio::spawn(async move {
            let mut added = 0;
            while added < 100 {
                let (bytes, version) = store.read_all(&object, 100).await.unwrap();
                let number: u64 = str::from_utf8(&bytes).unwrap().split(' ').next().unwrap().parse().unwrap();
                let next = format!("{} by {writer}", number + 1).into_bytes();
                let outcome = store.put_if(&object, next.into(), &Expect::Version(version)).await.unwrap();
                added += u64::from(matches!(outcome, PutOutcome::Written(_)));
            }
        })
    });
    futures::future::try_join_all(work).await.unwrap();
    assert!(store.read_all(&object, 100).await.unwrap().0.starts_with(b"800 by "));
}

#[tokio::test]
async fn keys_that_no_file_system_holds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path());
    store.put(&path("object"), Payload::from("x")).await.unwrap();
    store.put(&path("prefix/object"), Payload::from("x")).await.unwrap();
    let long = "n".repeat(300);
    for key in ["object/below", "prefix", ".lock", ".reshard-tmp-1", "a/.reshard-tmp-1/b", long.as_str()] {
        let put = store.put(&path(key), Payload::from("x")).await.map(drop);
        let put_if = store.put_if(&path(key), Payload::from("x"), &Expect::Absent).await.map(drop);
        for result in [put, put_if] {
            assert!(matches!(result, Err(StorageError::InvalidInput { .. })), "{key}: {result:?}");
        }
    }
    // A folder is no object, and below an object there is nothing.
    for key in ["prefix", "object/below"] {
        assert!(store.head(&path(key)).await.unwrap_err().is_not_found());
        assert!(store.read_all(&path(key), 10).await.unwrap_err().is_not_found());
        assert!(store.read(&path(key), 0..1, Box::new(vec![0])).await.1.unwrap_err().is_not_found());
        assert_eq!(store.delete(&path(key)).await.unwrap(), reshard_storage::Deletion::Absent);
    }
    assert!(temporaries(folder.path()).is_empty());
}

/// The slot goes with the system call: a reader that gives up doesn't leave anyone writing into memory it has
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_outlives_a_dropped_read() {
    struct Watched(Vec<u8>, std::sync::mpsc::Sender<u8>);
    impl reshard_storage::ReadBuffer for Watched {
        fn capacity(&self) -> usize {
            self.0.len()
        }
        fn room(&mut self, at: usize, want: usize) -> &mut [u8] {
            self.0.room(at, want)
        }
        fn filled(&mut self, _piece: std::ops::Range<usize>) {}
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            let _unheard = self.1.send(self.0[0]);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path());
    store.put(&path("object"), vec![9; 1 << 20].into()).await.unwrap();
    let (told, dropped) = std::sync::mpsc::channel();
    let object = path("object");
    let read = store.read(&object, 0..1 << 20, Box::new(Watched(vec![0; 1 << 20], told)));
    // Polled once, so that the call is on its way, then dropped.
    drop(futures::FutureExt::now_or_never(read));
    // The memory is let go only after the call has filled it.
    assert_eq!(dropped.recv().unwrap(), 9);
}

#[tokio::test]
async fn a_pipe_is_no_object_and_nobody_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap();
    assert!(made.success());
    let store = disk(folder.path());
    let (_, result) = store.read(&path("pipe"), 0..4, Box::new(vec![0; 4])).await;
    assert!(matches!(result, Err(StorageError::Corrupt { .. })), "{result:?}");
    let result = store.read_all(&path("pipe"), 100).await;
    assert!(matches!(result, Err(StorageError::Corrupt { .. })), "{result:?}");
}

#[tokio::test]
async fn links_in_a_circle_add_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path());
    store.put(&path("a/object"), vec![1].into()).await.unwrap();
    std::os::unix::fs::symlink(".", folder.path().join("a/self")).unwrap();
    std::os::unix::fs::symlink("loop", folder.path().join("a/loop")).unwrap();
    let listing = store.list(Some(&path("a")), Depth::All).await.unwrap();
    let names: Vec<&str> = listing.objects.iter().map(|object| object.path.as_str()).collect();
    assert_eq!(names, ["a/object"]);
    // Nothing but links: every way through them would be walked, were they followed.
    for name in ["empty", "empty/inner"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    for (name, target) in [("x", "."), ("y", "."), ("inner/x", ".."), ("inner/y", "..")] {
        std::os::unix::fs::symlink(target, folder.path().join("empty").join(name)).unwrap();
    }
    assert!(!store.list(None, Depth::Children).await.unwrap().prefixes.contains(&path("empty")));
    assert!(store.list(None, Depth::Children).await.unwrap().prefixes.contains(&path("a")));
    let (_, result) = store.read(&path("a/loop"), 0..1, Box::new(vec![0])).await;
    assert!(matches!(result, Err(StorageError::InvalidInput { .. })), "{result:?}");
}
