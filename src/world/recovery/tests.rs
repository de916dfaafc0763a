use super::*;
use crate::world::on_ranks;

/// Runs a rank per thread of this process, each with its recovery.
fn with_ranks<T: Send>(count: usize, rank: impl Fn(Handle, Recovery) -> T + Sync) -> Vec<T> {
    on_ranks(count, |world| {
        let recovery = Recovery::new(&world).unwrap();
        rank(world, recovery)
    })
}

const SOON: Duration = Duration::from_secs(60);

#[test]
fn the_threads_that_are_left_go_on() {
    let sums = with_ranks(4, |world, recovery| {
        let old = world.rank();
        if old == 1 {
            return None;
        }
        assert!(world.barrier().is_err(), "rank 1 has left");
        let (world, again) = recovery.shrink(SOON).unwrap();
        assert!(recovery.site.has_departed(1), "the others waited for rank 1, which had left");
        assert_eq!((world.size(), world.local_size()), (3, 3));
        let all = world.all_gather(&[old as u8]).unwrap();
        assert_eq!(all, [[0], [2], [3]]);
        assert!(recovery.shrink(SOON).is_err(), "it has been shrunk");
        // And again, with the first rank gone.
        if world.rank() == 0 {
            return Some(all.len());
        }
        assert!(world.barrier().is_err());
        let (world, _recovery) = again.shrink(SOON).unwrap();
        assert_eq!(world.all_gather(&[old as u8]).unwrap(), [[2], [3]]);
        Some(world.size())
    });
    assert_eq!(sums, [Some(3), None, Some(2), Some(2)]);
}

#[test]
fn a_thread_that_does_not_call_is_left_out_and_told() {
    let (gone_on, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let results = with_ranks(2, |_world, recovery| {
        if recovery.thread == 1 {
            wait.lock().unwrap().recv().unwrap();
            return recovery.shrink(SOON).map(|(world, _)| world.size());
        }
        let result = recovery.shrink(Duration::from_millis(10)).map(|(world, _)| world.size());
        gone_on.send(()).unwrap();
        result
    });
    assert_eq!(results[0], Ok(1));
    assert!(
        matches!(&results[1], Err(Error::LeftOut(text)) if text.contains("rank 1 was excluded")),
        "{results:?}"
    );
}

#[test]
fn a_call_wakes_the_threads_that_wait_in_the_old_world() {
    let sizes = with_ranks(2, |world, recovery| {
        if world.rank() == 1 {
            let error = world.barrier().unwrap_err();
            assert!(error.to_string().contains("rank 0"), "{error}");
        }
        recovery.shrink(SOON).unwrap().0.size()
    });
    assert_eq!(sizes, [2, 2]);
}
