//! Worlds of a program's with changed messages.

use super::*;

type Change = Arc<dyn Fn(&mut [Vec<u8>]) + Send + Sync>;

/// Changes the messages gathered by rank 0.
struct Changing(world::Handle, Change);

impl World for Changing {
    fn position(&self) -> world::Position {
        self.0.position()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn barrier(&self) -> Result<(), world::Error> {
        self.0.barrier()
    }
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        let mut all = self.0.all_gather(mine)?;
        if self.0.rank() == 0 {
            self.1(&mut all);
        }
        Ok(all)
    }
    fn abort(&self, code: i32, message: &str) -> ! {
        self.0.abort(code, message)
    }
}

/// Asserts that two ranks in such a world are not connected, for this reason of rank 0.
fn refuses(provider: &str, reason: &str, change: impl Fn(&mut [Vec<u8>]) + Send + Sync + 'static) {
    let change: Change = Arc::new(change);
    let errors = world::on_ranks(2, |world| {
        let world: world::Handle = Arc::new(Changing(world, Arc::clone(&change)));
        Network::connect_ranks(&world, Some(provider), None)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    });
    assert!(errors[0] == reason && errors[1].contains(reason), "{provider}: {errors:?}");
}

fn is_in_memory(address: &[u8]) -> bool {
    address.starts_with(b"fi_shm://")
}

#[test]
fn a_rank_without_an_address_is_noticed() {
    for provider in ["shm", "tcp"] {
        // In libfabric's form of a socket's address.
        let is_address = |message: &[u8]| is_in_memory(message) || message.len() == 16;
        refuses(provider, "a world has gathered no address of rank 1", move |all| {
            if is_address(&all[1]) {
                all[1].clear();
            }
        });
    }
}

/// They would be closed while others use their memory.
#[test]
fn endpoints_of_this_process_that_are_not_closed_together_are_not_connected() {
    let reason = "a world has gathered an address of this process that no rank of the job has";
    let address = shm::new_address().unwrap().into_bytes_with_nul();
    refuses("shm", reason, move |all| {
        if is_in_memory(&all[1]) {
            all[1].clone_from(&address);
        }
    });
    // The ranks have different names for their job.
    refuses("shm", reason, |all| {
        if all[0].len() == size_of::<u64>() {
            all[0][0] ^= 1;
        }
    });
}
