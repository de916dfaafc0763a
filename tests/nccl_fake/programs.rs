//! Complete user programs, except for one function: each compiles, and runs with a single rank.

use collectives::nccl::{Communicator, Library};

use crate::fake::{Fake, Knob};
use crate::processes::in_processes;

#[path = "../programs/graph_refill.rs"]
mod graph_refill;
#[path = "../programs/mesh.rs"]
mod mesh;
#[path = "../programs/overlapped_buckets.rs"]
mod overlapped_buckets;
#[path = "../programs/process_many_devices.rs"]
mod process_many_devices;
#[path = "../programs/ring.rs"]
mod ring;
#[path = "../programs/several_ids.rs"]
mod several_ids;
#[path = "../programs/symmetric_windows.rs"]
mod symmetric_windows;
#[path = "../programs/thread_per_device.rs"]
mod thread_per_device;

/// With one device, since the fakes move no data between ranks. The fakes detect mistakes here too.
#[test]
fn programs_of_users_run() {
    in_processes("programs::programs_of_users_run", &[("all", None)], |_| {
        let fake = Fake::new();
        fake.set(Knob::DeviceCount, 1);
        mesh::main().unwrap();
        overlapped_buckets::main().unwrap();
        process_many_devices::main().unwrap();
        ring::main().unwrap();
        several_ids::main().unwrap();
        symmetric_windows::main().unwrap();
        thread_per_device::main().unwrap();

        let rank = Communicator::builder(Library::load().unwrap(), &fake.stream(0)).init().unwrap();
        let mut gradients = fake.memory(rank.stream(), 4096);
        graph_refill::train(&rank, &mut gradients.slice_mut(..).unwrap()).unwrap();
    });
}
