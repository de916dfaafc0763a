//! A wrapper that checks a world's answers. Any safe program can implement [`World`], and the library relies
//! on ranks, lengths, and on the return of calls: a panic would end a thread awaited by others, or a drop
//! before memory of other ranks is safe.

use std::convert::Infallible;
use std::mem::{self, ManuallyDrop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::options::Rejoin;
use super::{Called, Error, ExitHook, Handle, Position, Reason, Wait, World, host, process_exit};

/// [`Checked::call_method`] calls all methods of the world, including those with a default: the default would
/// call the monitor of the world.
struct Checked {
    world: ManuallyDrop<Handle>,
    /// The world's first answer, since later ones may differ.
    position: Position,
    /// The first method with a panic.
    panicked: OnceLock<&'static str>,
}

/// Wraps a world: its position does not change, it gathers a message of every rank, or fails, and after a
/// panic it has failed.
pub(crate) fn guard_world(world: Handle) -> Handle {
    let (position, world) = (world.position(), ManuallyDrop::new(world));
    Arc::new(Checked { world, position, panicked: OnceLock::new() })
}

/// Wraps a world as [`guard_world`] does.
///
/// # Errors
/// If the rank is outside of the world.
#[cfg(feature = "fabric")]
pub(crate) fn check_world(world: Handle) -> Result<Handle, Error> {
    let world = guard_world(world);
    let Position { rank, size, .. } = world.position();
    if rank >= size {
        return Err(Error::Mismatch(format!(
            "a world reports that it has {size} ranks, and that this is rank {rank}"
        )));
    }
    Ok(world)
}

impl Checked {
    /// Calls a method of the world. Returns `None` if it panics.
    fn call_method<R>(&self, method: &'static str, call: impl FnOnce(&dyn World) -> R) -> Option<R> {
        let result = catch_panic(|| call(&**self.world));
        if result.is_none() && self.panicked.set(method).is_ok() {
            // The other ranks wait for this one.
            catch_panic(|| self.world.fail(panic_reason(method)));
        }
        result
    }

    /// Calls a fallible method, unless one has panicked before.
    fn try_call<R>(
        &self,
        method: &'static str,
        call: impl FnOnce(&dyn World) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if let Some(earlier) = self.panicked.get() {
            return Err(self.panic_failure(earlier));
        }
        self.call_method(method, call).unwrap_or_else(|| Err(self.panic_failure(method)))
    }

    fn panic_failure(&self, method: &str) -> Error {
        Error::RankFailed { rank: self.position.rank, host: host().name, reason: panic_reason(method) }
    }
}

/// The reason of this rank's failure.
fn panic_reason(method: &str) -> Reason {
    Reason::Reported(format!("World::{method} of the program's own world panicked"))
}

/// Returns `None` after a panic.
fn catch_panic<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Its drop is also code of the program.
            mem::forget(payload);
            None
        }
    }
}

impl World for Checked {
    fn position(&self) -> Position {
        self.position
    }

    fn describe(&self) -> String {
        self.call_method("describe", |world| world.describe())
            .unwrap_or_else(|| "a world that has panicked".to_owned())
    }

    fn barrier(&self) -> Result<(), Error> {
        self.try_call("barrier", |world| world.barrier())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let all = self.try_call("all_gather", |world| world.all_gather(mine))?;
        if all.len() != self.position.size {
            let (ranks, messages) = (self.position.size, all.len());
            return Err(Error::Mismatch(format!(
                "a world of {ranks} ranks has gathered {messages} messages"
            )));
        }
        Ok(all)
    }

    fn check(&self) -> Result<(), Error> {
        self.try_call("check", |world| world.check())
    }

    fn fail(&self, reason: Reason) {
        self.call_method("fail", |world| world.fail(reason));
    }

    fn set_limit(&self, limit: Option<Duration>) {
        self.call_method("set_limit", |world| world.set_limit(limit));
    }

    fn note(&self, text: &str) -> bool {
        self.call_method("note", |world| world.note(text)).unwrap_or_default()
    }

    fn note_with(&self, text: &str, data: &[u8]) -> bool {
        self.call_method("note_with", |world| world.note_with(text, data)).unwrap_or_default()
    }

    fn note_data(&self) -> Vec<(Vec<u8>, Duration)> {
        self.call_method("note_data", |world| world.note_data()).unwrap_or_default()
    }

    fn notes(&self) -> Vec<(String, Duration)> {
        self.call_method("notes", |world| world.notes()).unwrap_or_default()
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        self.call_method("compare", |world| world.compare(rank, topic, calls));
    }

    fn time_out(&self, wait: &Wait) -> bool {
        self.call_method("time_out", |world| world.time_out(wait)).unwrap_or_default()
    }

    fn wants_calls(&self) -> bool {
        self.call_method("wants_calls", |world| world.wants_calls()).unwrap_or_default()
    }

    fn post(&self, message: Vec<u8>) -> bool {
        self.call_method("post", |world| world.post(message)).unwrap_or_default()
    }

    fn take_posted(&self) -> Vec<(usize, Vec<u8>)> {
        self.call_method("take_posted", |world| world.take_posted()).unwrap_or_default()
    }

    fn is_connected_to(&self, process: usize) -> bool {
        self.call_method("is_connected_to", |world| world.is_connected_to(process)).unwrap_or_default()
    }

    fn hold_silence(&self, holds: bool) {
        self.call_method("hold_silence", |world| world.hold_silence(holds));
    }

    fn begin_end(&self) -> Result<(), (Error, i32)> {
        self.call_method("begin_end", |world| world.begin_end()).unwrap_or(Ok(()))
    }

    fn before_exit(&self, hook: ExitHook) {
        self.call_method("before_exit", |world| world.before_exit(hook));
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        let aborted = self.call_method("abort", |world| -> Infallible { world.abort(code, message) });
        end_process(aborted, code, message)
    }

    fn name_ranks(&self, per_process: usize) -> bool {
        self.call_method("name_ranks", |world| world.name_ranks(per_process)).unwrap_or_default()
    }

    fn rejoin(&self) -> Result<Rejoin, Error> {
        self.try_call("rejoin", |world| world.rejoin())
    }

    fn fail_as(&self, rank: usize, reason: Reason) {
        self.call_method("fail_as", |world| world.fail_as(rank, reason));
    }

    fn abort_as(&self, rank: usize, code: i32, message: &str) -> ! {
        let aborted =
            self.call_method("abort_as", |world| -> Infallible { world.abort_as(rank, code, message) });
        end_process(aborted, code, &format!("rank {rank}: {message}"))
    }
}

/// Ends the process if the world has panicked in its abort.
fn end_process(aborted: Option<Infallible>, code: i32, message: &str) -> ! {
    match aborted {
        Some(never) => match never {},
        None => {
            process_exit::claim_end();
            process_exit::report_once(message);
            process_exit::exit_now(code)
        }
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        // SAFETY: the world is not used afterwards.
        catch_panic(|| unsafe { ManuallyDrop::drop(&mut self.world) });
    }
}

#[cfg(test)]
#[cfg(feature = "fabric")]
mod tests {
    use super::*;

    /// A world with contradictory answers.
    struct Lying(Position, usize);

    impl World for Lying {
        fn position(&self) -> Position {
            self.0
        }

        fn rank(&self) -> usize {
            7
        }

        fn describe(&self) -> String {
            String::new()
        }

        fn barrier(&self) -> Result<(), Error> {
            Ok(())
        }

        fn all_gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
            Ok(vec![Vec::new(); self.1])
        }

        fn abort(&self, code: i32, _: &str) -> ! {
            std::process::exit(code)
        }
    }

    #[test]
    fn ranks_and_messages_are_checked() {
        let position = |rank, size| Position { rank, size, local_rank: 0, local_size: 1 };
        for (rank, size) in [(5, 1), (2, 2), (0, 0)] {
            let error = check_world(Arc::new(Lying(position(rank, size), size))).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("a world reports that it has {size} ranks, and that this is rank {rank}")
            );
        }
        let world = check_world(Arc::new(Lying(position(1, 2), 3))).unwrap();
        assert_eq!((world.rank(), world.size()), (1, 2));
        assert_eq!(
            world.all_gather(&[]).unwrap_err().to_string(),
            "a world of 2 ranks has gathered 3 messages"
        );
        let world = check_world(Arc::new(Lying(position(1, 2), 2))).unwrap();
        assert_eq!(world.all_gather(&[]).unwrap().len(), 2);
    }

    /// A world that panics in all methods except the first ones, and in its drop.
    struct Broken;

    impl World for Broken {
        fn position(&self) -> Position {
            Position { rank: 1, size: 2, local_rank: 1, local_size: 2 }
        }

        fn describe(&self) -> String {
            panic!("a broken world")
        }

        fn barrier(&self) -> Result<(), Error> {
            Ok(())
        }

        fn all_gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
            panic!("a broken world")
        }

        fn monitor(&self) -> Option<&dyn World> {
            panic!("a broken world")
        }

        fn abort(&self, _: i32, _: &str) -> ! {
            panic!("a broken world")
        }
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            panic!("a broken world")
        }
    }

    #[test]
    fn a_panic_of_any_method_is_a_failure() {
        let world = check_world(Arc::new(Broken)).unwrap();
        assert_eq!(world.barrier(), Ok(()));
        let reason = panic_reason("check");
        assert_eq!(reason.to_string(), "failed: World::check of the program's own world panicked");
        let failure = Err(Error::RankFailed { rank: 1, host: host().name, reason });
        assert_eq!(world.check(), failure);
        // The first one is kept, and nothing but reports reaches the world.
        assert_eq!(world.barrier(), failure);
        assert_eq!(world.all_gather(&[]).map(drop), failure);
        assert_eq!(world.rejoin().map(drop), failure);
        assert_eq!(world.describe(), "a world that has panicked");
        world.fail("a reason".into());
        world.fail_as(1, "a reason".into());
        world.set_limit(None);
        world.compare(1, 0, &[]);
        world.before_exit(Box::new(|_, _| ()));
        assert!(!world.note("a note") && !world.wants_calls() && !world.name_ranks(1));
        assert_eq!((world.notes(), world.begin_end()), (vec![], Ok(())));
        world.hold_silence(true);
        drop(world);
    }
}
