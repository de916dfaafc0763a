//! Memory shared by operations of one group in a graph. Outside of graphs, borrows exclude that.

use collectives::nccl::{Collectives, Config, Error, Graph, Memory};

use crate::fake::Fake;
use crate::not_allowed;

/// Operations of a group run at the same time.
#[test]
fn operations_of_a_group_in_a_graph_do_not_share_what_one_writes() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    fake.log();
    let mut exchange = |range: std::ops::Range<usize>| {
        Graph::capture(|capture| {
            capture.group(|capture| {
                capture.group(|capture| capture.on(&communicator).send(&memory.slice::<f32>(..2)?, 0))?;
                capture.on(&communicator).recv(&mut memory.slice_mut::<f32>(range)?, 0)
            })
        })
    };
    let error = exchange(1..3).map(drop).unwrap_err();
    let text = "another operation of the group writes what this one uses, or uses what it writes";
    not_allowed(Err::<(), _>(error), &format!("ncclRecv: {text}"));
    assert_eq!(fake.log(), [""; 0]);
    exchange(2..4).unwrap();
    // Sharing is allowed one after the other.
    Graph::capture(|capture| {
        capture.on(&communicator).send(&memory.slice::<f32>(..2)?, 0)?;
        capture.on(&communicator).recv(&mut memory.slice_mut::<f32>(1..3)?, 0)
    })
    .unwrap();
}

/// Exact to the byte, for buffers that are read or written, and an operator's scalar.
#[test]
fn operations_of_a_group_in_a_graph_may_use_neighbours() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut other = fake.memory(communicator.stream(), 16);
    let overlaps = |result: Result<Graph, Error>| match result {
        Ok(_) => false,
        Err(error) => {
            assert!(
                error.to_string().contains("another operation of the group writes what this one uses"),
                "{error}"
            );
            true
        }
    };
    for (byte, expected) in [(0, true), (3, true), (4, false)] {
        let read_first = Graph::capture(|capture| {
            capture.group(|capture| {
                capture.on(&communicator).send(&memory.slice::<f32>(..1)?, 0)?;
                capture.on(&communicator).recv(&mut memory.slice_mut::<u8>(byte..=byte)?, 0)
            })
        });
        assert_eq!(overlaps(read_first), expected, "{byte}");
        let written_first = Graph::capture(|capture| {
            capture.group(|capture| {
                capture.on(&communicator).recv(&mut memory.slice_mut::<f32>(..1)?, 0)?;
                capture.on(&communicator).send(&memory.slice::<u8>(byte..=byte)?, 0)
            })
        });
        assert_eq!(overlaps(written_first), expected, "{byte}");
    }
    for (byte, expected) in [(7, false), (8, true)] {
        let scalar = Graph::capture(|capture| {
            capture.group(|capture| {
                capture.on(&communicator).recv(&mut memory.slice_mut::<u8>(byte..=byte)?, 0)?;
                let scalar = memory.slice::<f32>(2..3)?;
                let sum = communicator.scaled_sum_on_device(&scalar)?;
                capture.on(&communicator).all_reduce_in_place(&mut other.slice_mut::<f32>(..)?, &sum)
            })
        });
        assert_eq!(overlaps(scalar), expected, "{byte}");
    }
}

/// The caller of the unsafe constructor guarantees that nothing else writes the memory while a collective
/// uses it.
#[test]
fn memory_by_its_address_is_its_makers_matter() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = fake.memory(communicator.stream(), 8);
    let address = memory.slice::<f32>(..).unwrap().address();
    let [send, mut receive] = [(); 2].map(|()| {
        let stream = communicator.stream().clone();
        // SAFETY: the memory lives to the end of the test, and nothing reads it.
        unsafe { Memory::from_raw(address, 8, stream, ()) }
    });
    Graph::capture(|capture| {
        capture.group(|capture| {
            capture.on(&communicator).send(&send, 0)?;
            capture.on(&communicator).recv(&mut receive, 0)
        })
    })
    .map(drop)
    .unwrap();
}
