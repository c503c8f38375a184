//! Lent tensors: who may write when, and that nobody does once they went back.

#![allow(clippy::unwrap_used, reason = "functions that only tests call are tests too")]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use reshard_device::{
    Axis, DestinationHandle, DeviceError, SourceHandle, SourceWindow, StridedCopy, Window, with_destinations,
    with_sources,
};

const STRIPE: usize = 1 << 20;

fn noise(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8).collect()
}

fn is_sent_and_kept<T: Send + Sync + 'static>() {}

#[test]
fn handles_and_windows_go_to_any_thread() {
    is_sent_and_kept::<DestinationHandle>();
    is_sent_and_kept::<SourceHandle>();
    is_sent_and_kept::<Window>();
    is_sent_and_kept::<SourceWindow>();
}

#[test]
fn writes_land_where_they_should_across_stripes() {
    let bytes = noise(3 * STRIPE);
    let mut tensor = vec![9; 4 * STRIPE];
    with_destinations(vec![&mut tensor], |handles| {
        let to = &handles[0];
        assert_eq!(to.size(), 4 * STRIPE);
        to.write(STRIPE / 2 + 1, &bytes).unwrap();
        to.zero(STRIPE - 1..STRIPE + 1).unwrap();
        to.write(4 * STRIPE, &[]).unwrap();
        to.zero(4 * STRIPE..4 * STRIPE).unwrap();
    });
    let mut want = vec![9; 4 * STRIPE];
    want[STRIPE / 2 + 1..][..3 * STRIPE].copy_from_slice(&bytes);
    want[STRIPE - 1..STRIPE + 1].fill(0);
    assert!(tensor == want);
}

#[test]
fn bytes_outside_are_an_error() {
    let mut tensor = [1; 10];
    with_destinations(vec![&mut tensor, &mut []], |handles| {
        for (offset, length) in [(0, 11), (10, 1), (11, 0), (usize::MAX, 2)] {
            let error = Err(DeviceError::OutOfRange { offset, length, size: 10 });
            assert_eq!(handles[0].write(offset, &vec![0; length]), error);
        }
        let backward = Range { start: 3, end: 2 };
        for range in [0..11, 10..11, 11..11, backward] {
            let error = handles[0].zero(range.clone()).unwrap_err();
            assert!(matches!(error, DeviceError::OutOfRange { size: 10, .. }));
            assert_eq!(handles[0].window(range).unwrap_err(), error);
        }
        handles[1].write(0, &[]).unwrap();
        assert!(handles[1].write(0, &[1]).is_err());
    });
    assert_eq!(tensor, [1; 10]);
    with_sources(vec![&tensor], |handles| {
        let mut into = [0; 4];
        handles[0].read_into(6, &mut into).unwrap();
        assert_eq!(into, [1; 4]);
        let error = DeviceError::OutOfRange { offset: 7, length: 4, size: 10 };
        assert_eq!(handles[0].read_into(7, &mut into), Err(error));
    });
}

/// Columns `start..` of a matrix whose rows are `width` bytes, from a dense stream of `columns` wide rows.
fn columns(rows: usize, width: usize, start: usize, columns: usize) -> StridedCopy {
    let axis = Axis { count: rows, stream_stride: columns as u64, tensor_stride: width };
    StridedCopy::new(0, start, &[axis], columns).unwrap()
}

#[test]
fn threads_that_write_columns_side_by_side_do_not_disturb_each_other() {
    // No width divides a stripe, so rows lie across the borders.
    for (rows, width, cuts) in [
        (70_000, 48, [0, 4, 20, 48]),
        (300, 10_007, [0, 3000, 3001, 10_007]),
        (3, 1_500_000, [0, 7, 900_000, 1_500_000]),
    ] {
        let want = noise(rows * width);
        let mut tensor = vec![0; rows * width];
        with_destinations(vec![&mut tensor], |handles| {
            std::thread::scope(|scope| {
                for cut in cuts.windows(2) {
                    let (start, count) = (cut[0], cut[1] - cut[0]);
                    let (want, to) = (&want, handles[0].clone());
                    scope.spawn(move || {
                        let copy = columns(rows, width, start, count);
                        let mut stream = vec![0; rows * count];
                        assert_eq!(copy.gather(want, 0, &mut stream), Ok(stream.len()));
                        let mut at = 0;
                        for piece in stream.chunks(123_457) {
                            assert_eq!(to.scatter(&copy, at, piece), Ok(piece.len()));
                            at += piece.len() as u64;
                        }
                    });
                }
            });
        });
        assert!(tensor == want);
    }
}

#[test]
fn a_window_keeps_others_from_its_bytes_and_from_no_more() {
    let mut tensor = vec![0; 3 * STRIPE];
    let taken = STRIPE - 100..2 * STRIPE + 100;
    with_destinations(vec![&mut tensor], |handles| {
        let to = &handles[0];
        let mut window = to.window(taken.clone()).unwrap();
        for asked in
            [taken.clone(), STRIPE - 101..STRIPE - 99, 2 * STRIPE + 99..2 * STRIPE + 101, 0..3 * STRIPE]
        {
            assert!(matches!(to.window(asked.clone()), Err(DeviceError::Busy { .. })));
            assert!(matches!(to.zero(asked), Err(DeviceError::Busy { .. })));
        }
        let inside = STRIPE + 5..STRIPE + 6;
        let busy = DeviceError::Busy { asked: inside.clone(), taken: taken.clone() };
        assert_eq!(to.window(inside).unwrap_err(), busy);

        let (mut before, mut after) =
            (to.window(0..taken.start).unwrap(), to.window(taken.end..3 * STRIPE).unwrap());
        before.fill(1);
        window.as_mut().fill(2);
        after.fill(3);
        assert_eq!((before[0], window.as_ref()[0], after[0]), (1, 2, 3));
        drop(before);
        to.write(taken.start - 1, &[4]).unwrap();
        drop(window);
        to.write(taken.end - 1, &[5]).unwrap();
        assert!(to.write(taken.end, &[6]).is_err());
        drop(after);
        assert_eq!(to.window(0..3 * STRIPE).unwrap().len(), 3 * STRIPE);
        assert!(to.window(4..4).unwrap().is_empty());
    });
    let mut want = vec![1; 3 * STRIPE];
    want[taken.clone()].fill(2);
    want[taken.end..].fill(3);
    want[taken.start - 1] = 4;
    want[taken.end - 1] = 5;
    assert!(tensor == want);
}

#[test]
fn rows_go_around_a_window_that_lies_in_their_gaps() {
    let (rows, width) = (300_000, 12);
    let stream = noise(rows * 4);
    let mut tensor = vec![0; rows * width];
    with_destinations(vec![&mut tensor], |handles| {
        let copy = columns(rows, width, 0, 4);
        let _gap = handles[0].window(1000 * width + 4..1001 * width).unwrap();
        let _across = handles[0].window(100_000 * width + 4..100_000 * width + 9).unwrap();
        assert_eq!(handles[0].scatter(&copy, 0, &stream), Ok(stream.len()));
        // A byte of a row, on the other hand, is taken.
        let row = handles[0].window(2000 * width + 3..2000 * width + 5).unwrap();
        let error = handles[0].scatter(&copy, 0, &stream).unwrap_err();
        drop(row);
        let (asked, taken) = (2000 * width..2000 * width + 4, 2000 * width + 3..2000 * width + 5);
        assert_eq!(error, DeviceError::Busy { asked, taken });
    });
    let mut got = vec![0; rows * 4];
    columns(rows, width, 0, 4).gather(&tensor, 0, &mut got).unwrap();
    assert!(got == stream);
}

fn is_refused(handle: &DestinationHandle) {
    let copy = StridedCopy::new(0, 0, &[], 1).unwrap();
    assert_eq!(handle.write(0, &[1]), Err(DeviceError::Revoked));
    assert_eq!(handle.zero(0..1), Err(DeviceError::Revoked));
    assert_eq!(handle.scatter(&copy, 0, &[1]), Err(DeviceError::Revoked));
    assert_eq!(handle.window(0..1).unwrap_err(), DeviceError::Revoked);
}

#[test]
fn handles_that_outlive_the_closure_are_refused() {
    let mut tensor = vec![7; 4];
    let kept = with_destinations(vec![&mut tensor], |handles| handles[0].clone());
    is_refused(&kept);
    assert_eq!(tensor, [7; 4]);
    drop(tensor);
    is_refused(&kept);

    let tensor = vec![7; 4];
    let kept = with_sources(vec![&tensor], |handles| handles[0].clone());
    drop(tensor);
    let copy = StridedCopy::new(0, 0, &[], 1).unwrap();
    assert_eq!(kept.read_into(0, &mut [0]), Err(DeviceError::Revoked));
    assert_eq!(kept.gather(&copy, 0, &mut [0]), Err(DeviceError::Revoked));
    assert_eq!(kept.window(0..1).unwrap_err(), DeviceError::Revoked);
}

#[test]
fn a_source_goes_back_only_when_its_windows_are_gone() {
    let tensor = noise(1000);
    let (send, received) = mpsc::channel();
    with_sources(vec![&tensor], |handles| {
        assert!(matches!(handles[0].window(999..1001), Err(DeviceError::OutOfRange { .. })));
        let window = handles[0].window(10..1000).unwrap();
        std::thread::spawn(move || {
            // By now, or soon, nobody enters any more.
            while handles[0].read_into(0, &mut []).is_ok() {
                std::thread::yield_now();
            }
            send.send(window.to_vec()).unwrap();
            drop(window);
        });
    });
    // The thread sends before it lets go, so what it sent is here.
    assert!(received.try_recv().unwrap() == tensor[10..]);
}

/// Lends a tensor to a closure that leaves a window with a thread and then ends by `end`. The thread fills
/// the window only after that, and the tensor goes back only after the thread is done.
fn leaves_a_window_behind(end: fn()) {
    let mut tensor = vec![0; STRIPE + 5];
    let ended = Arc::new(AtomicBool::new(false));
    let (send_handle, handle) = mpsc::channel();
    let result = catch_unwind(AssertUnwindSafe(|| {
        with_destinations(vec![&mut tensor], |handles| {
            let mut window = handles[0].window(1..STRIPE + 5).unwrap();
            let has_ended = Arc::clone(&ended);
            std::thread::spawn(move || {
                while !has_ended.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                // By now, or soon, nobody enters any more.
                while handles[0].zero(0..0).is_ok() {
                    std::thread::yield_now();
                }
                window.fill(8);
                send_handle.send(handles[0].clone()).unwrap();
                drop(window);
            });
            ended.store(true, Ordering::Release);
            end();
        });
    }));
    // The thread sends before it lets go, so what it sent is here.
    is_refused(&handle.try_recv().unwrap());
    assert!(tensor[0] == 0 && tensor[1..].iter().all(|byte| *byte == 8));
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

#[test]
fn a_tensor_goes_back_only_when_its_windows_are_gone() {
    leaves_a_window_behind(|| ());
}

#[test]
fn a_tensor_goes_back_only_when_its_windows_are_gone_though_the_closure_panics() {
    let panic =
        catch_unwind(|| leaves_a_window_behind(|| resume_unwind(Box::new("as planned")))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"as planned"));
}

#[test]
fn handles_write_while_the_closure_ends_or_are_refused_but_never_write_later() {
    for _ in 0..100 {
        let mut tensor = vec![0u8; 64 << 10];
        let writer = with_destinations(vec![&mut tensor], |handles| {
            let to = handles[0].clone();
            let (send_started, started) = mpsc::channel();
            let writer = std::thread::spawn(move || {
                let mut writes = 0u8;
                while to.write(0, &vec![writes.wrapping_add(1); 64 << 10]).is_ok() {
                    writes = writes.wrapping_add(1);
                    let _ = send_started.send(());
                }
                writes
            });
            started.recv().unwrap();
            writer
        });
        let seen = tensor.clone();
        let writes = writer.join().unwrap();
        // All of the last write that was not refused is there, and it was there when the tensor came back.
        assert!(seen.iter().all(|byte| *byte == writes));
        assert!(tensor == seen);
    }
}
