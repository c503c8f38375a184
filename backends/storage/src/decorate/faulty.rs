//! [`Faulty`]: a store that fails when and how a test says, the same way every time.

use crate::{
    At, Capabilities, Deletion, Depth, Durable, Expect, ObjectInfo, Operation, Outage, Page, PageToken,
    Payload, PutOutcome, ReadBuffer, Result, Slot, StorageBackend, StorageError, StoragePath, Upload,
    UploadSession, UploadShape, Version,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Refused with `AccessDenied`, nothing happens; not retried by anyone.
    Refused,
    /// The request gets lost: nothing happens, and the caller sees a broken connection.
    LostRequest,
    /// The answer gets lost: it happens, and the caller sees a broken connection.
    LostAnswer,
    /// A read breaks off after half of its bytes; on other requests like [`Fault::LostAnswer`].
    CutShort,
    /// One byte differs, in silence: in what a read returns, in what a put or a part stores. Nothing on other
    /// requests.
    WrongByte,
    /// It takes this much longer.
    Delay(Duration),
    /// From now on the store is gone for good: this request and every later one fail, and nothing happens.
    Stop,
}

/// Which of the requests that a [`Rule`] looks at it strikes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum When {
    /// The n-th, counted from 1.
    Nth(u64),
    /// All up to and including the n-th.
    First(u64),
    /// Every one.
    Always,
    /// Each with this probability, drawn from the seed.
    Chance(f64),
}

/// One kind of fault and when it strikes. It looks at the requests that fit both filters, and counts them.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Only this operation; `None` for all.
    pub operation: Option<Operation>,
    /// Only paths that contain this text; an empty one for all, also for requests without a path.
    pub path: String,
    /// Which of those.
    pub when: When,
    /// What goes wrong.
    pub fault: Fault,
}

impl Rule {
    /// `fault` strikes `operation` on any path at `when`.
    pub fn on(operation: Operation, when: When, fault: Fault) -> Self {
        Self { operation: Some(operation), path: String::new(), when, fault }
    }

    /// `fault` strikes any request at `when`.
    pub fn on_any(when: When, fault: Fault) -> Self {
        Self { operation: None, path: String::new(), when, fault }
    }

    /// Only on paths that contain `text`.
    pub fn path(mut self, text: &str) -> Self {
        text.clone_into(&mut self.path);
        self
    }
}

/// Makes requests to the backend inside fail by [`Rule`]s. The first rule that strikes decides.
pub struct Faulty {
    inner: Arc<dyn StorageBackend>,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct Faults {
    seed: u64,
    rules: Vec<(Rule, AtomicU64)>,
    stopped: AtomicBool,
    store: String,
}

impl Faulty {
    /// Wraps `inner`; `seed` decides the draws of [`When::Chance`], by the rule and the count of its
    /// requests.
    pub fn new(inner: Arc<dyn StorageBackend>, seed: u64, rules: impl IntoIterator<Item = Rule>) -> Self {
        let rules = rules.into_iter().map(|rule| (rule, AtomicU64::new(0))).collect();
        let store = inner.to_string();
        Self { inner, faults: Arc::new(Faults { seed, rules, stopped: AtomicBool::new(false), store }) }
    }
}

/// A fault that is left when delays have been waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strike {
    None,
    Before,
    After,
    CutShort,
    WrongByte,
}

impl Faults {
    /// Decides on a request; refusals and stops are errors right here.
    async fn strike(&self, operation: Operation, path: Option<&StoragePath>) -> Result<Strike> {
        let text = path.map_or("", StoragePath::as_str);
        let mut struck = None;
        for (index, (rule, seen)) in self.rules.iter().enumerate() {
            if rule.operation.is_none_or(|only| only == operation) && text.contains(&rule.path) {
                let count = seen.fetch_add(1, Ordering::SeqCst) + 1;
                let strikes = match rule.when {
                    When::Nth(n) => count == n,
                    When::First(n) => count <= n,
                    When::Always => true,
                    When::Chance(chance) => draw(self.seed, index as u64, count) < chance,
                };
                struck = struck.or(strikes.then_some(rule.fault));
            }
        }
        if struck == Some(Fault::Stop) {
            self.stopped.store(true, Ordering::SeqCst);
        }
        if self.stopped.load(Ordering::SeqCst) {
            let detail = "the store was stopped by fault injection".to_owned();
            return Err(StorageError::Internal { at: self.at(operation, path), detail });
        }
        match struck {
            None | Some(Fault::Stop) => Ok(Strike::None),
            Some(Fault::Refused) => {
                let detail = "refused by fault injection".to_owned();
                Err(StorageError::AccessDenied { at: self.at(operation, path), detail })
            }
            Some(Fault::LostRequest) => Ok(Strike::Before),
            Some(Fault::LostAnswer) => Ok(Strike::After),
            Some(Fault::CutShort) => Ok(Strike::CutShort),
            Some(Fault::WrongByte) => Ok(Strike::WrongByte),
            Some(Fault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(Strike::None)
            }
        }
    }

    fn at(&self, operation: Operation, path: Option<&StoragePath>) -> At {
        let here = At::new(operation, &self.store);
        match path {
            Some(path) => here.path(path),
            None => here,
        }
    }

    fn broken(&self, operation: Operation, path: Option<&StoragePath>) -> StorageError {
        let detail = "broken by fault injection".to_owned();
        StorageError::Unavailable { at: self.at(operation, path), outage: Outage::Connection, detail }
    }

    /// A request whose payload and answer can't be bent.
    async fn around<T>(
        &self,
        operation: Operation,
        path: Option<&StoragePath>,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match self.strike(operation, path).await? {
            Strike::None | Strike::WrongByte => request.await,
            Strike::Before => Err(self.broken(operation, path)),
            Strike::After | Strike::CutShort => {
                request.await?;
                Err(self.broken(operation, path))
            }
        }
    }
}

/// A number in `0..1` that depends on nothing but its arguments (splitmix64).
fn draw(seed: u64, rule: u64, count: u64) -> f64 {
    let mut bits = seed ^ rule.rotate_left(32) ^ count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The payload with its middle byte changed.
fn bend(payload: &Payload) -> Payload {
    let mut bytes = payload.to_bytes().to_vec();
    flip_middle(&mut bytes);
    bytes.into()
}

/// What is changed in a wrong byte.
const WRONG_BITS: u8 = 0x40;

fn flip_middle(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= WRONG_BITS;
    }
}

/// A slot one byte of which comes in wrong, before its owner is told.
struct Bent {
    slot: Slot,
    at: usize,
}

impl ReadBuffer for Bent {
    fn capacity(&self) -> usize {
        self.slot.capacity()
    }

    fn room(&mut self, at: usize, want: usize) -> &mut [u8] {
        self.slot.room(at, want)
    }

    fn filled(&mut self, piece: Range<usize>) {
        if piece.contains(&self.at)
            && let Some(byte) = self.slot.room(piece.start, piece.len()).get_mut(self.at - piece.start)
        {
            *byte ^= WRONG_BITS;
        }
        self.slot.filled(piece);
    }

    fn take(&mut self, at: usize, bytes: &[u8]) {
        match self.at.checked_sub(at) {
            Some(wrong) if wrong < bytes.len() => {
                let mut bent = bytes.to_vec();
                bent[wrong] ^= WRONG_BITS;
                self.slot.take(at, &bent);
            }
            _ => self.slot.take(at, bytes),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.slot.bytes()
    }
}

#[async_trait]
impl StorageBackend for Faulty {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, slot: Slot) -> (Slot, Result<()>) {
        let strike = match self.faults.strike(Operation::Read, Some(path)).await {
            Ok(strike) => strike,
            Err(error) => return (slot, Err(error)),
        };
        let broken = || Err(self.faults.broken(Operation::Read, Some(path)));
        let half = range.start..range.start + range.end.saturating_sub(range.start) / 2;
        match strike {
            Strike::None => self.inner.read(path, range, slot).await,
            Strike::Before => (slot, broken()),
            Strike::After => (self.inner.read(path, range, slot).await.0, broken()),
            Strike::CutShort => (self.inner.read(path, half, slot).await.0, broken()),
            Strike::WrongByte => {
                let length = range.end.saturating_sub(range.start);
                let at = usize::try_from(length / 2).unwrap_or(usize::MAX);
                let bent: Slot = Box::new(Bent { slot, at });
                let (bent, result) = self.inner.read(path, range, bent).await;
                // A store that lost the slot gives another one back.
                let bent: Box<dyn Any> = bent;
                match bent.downcast::<Bent>() {
                    Ok(bent) => (bent.slot, result),
                    Err(_) => (Box::new(Vec::new()), result),
                }
            }
        }
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        match self.faults.strike(Operation::ReadAll, Some(path)).await? {
            Strike::None => self.inner.read_all(path, max_len).await,
            Strike::WrongByte => {
                let (bytes, version) = self.inner.read_all(path, max_len).await?;
                Ok((bend(&bytes.into()).to_bytes(), version))
            }
            Strike::Before | Strike::After | Strike::CutShort => {
                Err(self.faults.broken(Operation::ReadAll, Some(path)))
            }
        }
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        self.faults.around(Operation::Head, Some(path), self.inner.head(path)).await
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        match self.faults.strike(Operation::Put, Some(path)).await? {
            Strike::None => self.inner.put(path, payload).await,
            Strike::WrongByte => self.inner.put(path, bend(&payload)).await,
            Strike::Before => Err(self.faults.broken(Operation::Put, Some(path))),
            Strike::After | Strike::CutShort => {
                self.inner.put(path, payload).await?;
                Err(self.faults.broken(Operation::Put, Some(path)))
            }
        }
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        let strike = self.faults.strike(Operation::PutIf, Some(path)).await?;
        let unknown = PutOutcome::Unknown { cause: self.faults.broken(Operation::PutIf, Some(path)) };
        match strike {
            Strike::None => self.inner.put_if(path, payload, expect).await,
            Strike::WrongByte => self.inner.put_if(path, bend(&payload), expect).await,
            Strike::Before => Ok(unknown),
            Strike::After | Strike::CutShort => {
                self.inner.put_if(path, payload, expect).await?;
                Ok(unknown)
            }
        }
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        let upload = self
            .faults
            .around(Operation::StartUpload, Some(path), self.inner.start_multipart(path, shape))
            .await?;
        let (faults, path) = (Arc::clone(&self.faults), path.clone());
        Ok(upload.map_session(|inner| Arc::new(FaultyUpload { inner, faults, path })))
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page> {
        self.faults.around(Operation::List, prefix, self.inner.list_page(prefix, depth, after)).await
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        self.faults.around(Operation::Delete, paths.first(), self.inner.delete_many(paths)).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Arc<dyn UploadSession>,
    faults: Arc<Faults>,
    path: StoragePath,
}

#[async_trait]
impl UploadSession for FaultyUpload {
    async fn put_part(&self, index: u64, offset: u64, payload: Payload) -> Result<()> {
        match self.faults.strike(Operation::PutPart, Some(&self.path)).await? {
            Strike::None => self.inner.put_part(index, offset, payload).await,
            Strike::WrongByte => self.inner.put_part(index, offset, bend(&payload)).await,
            Strike::Before => Err(self.faults.broken(Operation::PutPart, Some(&self.path))),
            Strike::After | Strike::CutShort => {
                self.inner.put_part(index, offset, payload).await?;
                Err(self.faults.broken(Operation::PutPart, Some(&self.path)))
            }
        }
    }

    async fn complete(&self) -> Result<Durable> {
        self.faults.around(Operation::CompleteUpload, Some(&self.path), self.inner.complete()).await
    }

    async fn abort(&self) -> Result<()> {
        self.faults.around(Operation::AbortUpload, Some(&self.path), self.inner.abort()).await
    }
}

shown_as_inner!(Faulty);
