//! Work on the library's own runtime, seen from the caller's thread.

use super::TransferError;
use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

/// The runtime and the process that started it.
static RUNTIME: OnceLock<Result<(u32, Runtime), String>> = OnceLock::new();

fn runtime() -> Result<&'static Runtime, TransferError> {
    let started = RUNTIME.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16);
        Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("reshard-io")
            .enable_all()
            .build()
            .map(|runtime| (std::process::id(), runtime))
            .map_err(|error| error.to_string())
    });
    match started {
        Ok((process, runtime)) if *process == std::process::id() => Ok(runtime),
        Ok(_) => Err(TransferError::Forked),
        Err(error) => Err(TransferError::Runtime(error.clone())),
    }
}

/// A piece of I/O under way. Dropping it gives the work up.
///
/// The caller waits with a time limit, so that it can meet its peers between waits; waiting blocks the thread and
/// works inside another tokio runtime too, since it is not waiting for a future.
pub struct Job<T> {
    result: Receiver<T>,
    task: AbortHandle,
}

impl<T: Send + 'static> Job<T> {
    /// Starts `work`.
    ///
    /// # Errors
    /// [`TransferError::Forked`] in a forked child, [`TransferError::Runtime`].
    pub fn start(work: impl Future<Output = T> + Send + 'static) -> Result<Self, TransferError> {
        let (sender, result) = channel();
        let task = runtime()?.spawn(async move {
            // The receiver is gone only when nobody wants the result any more.
            let _ = sender.send(work.await);
        });
        Ok(Self { result, task: task.abort_handle() })
    }

    /// The result, if it comes within `timeout`.
    ///
    /// # Errors
    /// [`TransferError::Lost`] where the task died.
    pub fn wait(&self, timeout: Duration) -> Result<Option<T>, TransferError> {
        match self.result.recv_timeout(timeout) {
            Ok(result) => Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TransferError::Lost),
        }
    }

    /// Waits as long as it takes.
    ///
    /// # Errors
    /// [`TransferError::Lost`] where the task died.
    pub fn finish(self) -> Result<T, TransferError> {
        self.result.recv().map_err(|_| TransferError::Lost)
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_inside_another_runtime_and_is_lost_when_it_panics() {
        let outer = Builder::new_current_thread().enable_all().build().unwrap();
        outer.block_on(async {
            assert_eq!(Job::start(async { 7 }).unwrap().finish().unwrap(), 7);
            let never = Job::start(std::future::pending::<()>()).unwrap();
            assert!(matches!(never.wait(Duration::from_millis(1)), Ok(None)));
            let lost = Job::start(async { panic!("on purpose") }).unwrap();
            let result: Result<(), _> = lost.finish();
            assert!(matches!(result, Err(TransferError::Lost)));
        });
    }
}
