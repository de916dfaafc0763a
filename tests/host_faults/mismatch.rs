//! Ranks whose calls differ: none receives data of another operation, none hangs, and each gets an error with
//! both calls.

use crate::rank::{CARRIERS, options};
use collectives::fabric::{Algorithm, Collective, Communicator, Error, Options};
use collectives::{Element, ReduceOp, world};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("other_lengths_are_told", other_lengths_are_told),
    ("longer_parts_of_whole_segments_are_told", longer_parts_of_whole_segments_are_told),
    ("other_types_are_told", other_types_are_told),
    ("other_roots_are_told", other_roots_are_told),
    ("other_operators_are_told", other_operators_are_told),
    ("other_collectives_are_told", other_collectives_are_told),
    ("other_options_are_told", other_options_are_told),
    ("a_collective_too_few_is_told", a_collective_too_few_is_told),
    ("ranks_that_are_late_are_not_in_the_wrong", ranks_that_are_late_are_not_in_the_wrong),
    ("processes_are_told_as_threads_are", crate::death::mismatches_are_told_to_all_processes),
];

const RANKS: usize = 3;
/// Elements of a short message, and of one that is cut into segments.
const COUNTS: [usize; 2] = [60, 300_000];
/// Operations in which every rank needs data of every other.
const NEEDS_ALL: [&str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];
/// Long after ranks that wait have been compared.
const PATIENCE: Duration = Duration::from_secs(60);

/// Deviations of rank 1 from the others.
#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    count: usize,
    root: usize,
    op: ReduceOp,
}

/// Calls an operation.
pub(crate) fn call<E: Element + From<u8>>(
    communicator: &mut Communicator,
    name: &str,
    count: usize,
    root: usize,
    op: ReduceOp,
) -> Result<(), Error> {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let mut one = vec![E::from(rank as u8); count];
    let all = vec![E::from(rank as u8); ranks * count];
    let mut other = all.clone();
    match name {
        "all_reduce" => communicator.all_reduce_in_place(&mut one, op),
        "all_gather" => communicator.all_gather(&one, &mut other),
        "reduce_scatter" => communicator.reduce_scatter(&all, &mut one, op),
        "broadcast" => communicator.broadcast_in_place(&mut one, root),
        "reduce" => communicator.reduce_in_place(&mut one, op, root),
        "all_to_all" => communicator.all_to_all(&all, &mut other),
        "all_to_all_v" => {
            let parts: Vec<_> = (0..ranks).map(|rank| rank * count..(rank + 1) * count).collect();
            communicator.all_to_all_v(&all, &parts, &mut other, &parts)
        }
        "gather" => communicator.gather(&one, Some(&mut other), root),
        "scatter" => communicator.scatter(Some(&all), &mut one, root),
        "barrier" => communicator.barrier(),
        "send/recv" => match rank {
            0 => communicator.send(&one, 1),
            1 => communicator.recv(&mut one, 0),
            _ => Ok(()),
        },
        // "exchange", around the ring.
        _ => communicator.exchange_in_place(&mut one, (rank + 1) % ranks, (rank + ranks - 1) % ranks),
    }
}

/// The error of each rank, with a communicator of threads, in which each calls `operation` until it fails, at
/// most twice, and then closes; with `at_once` every rank must fail in the first.
fn told(
    carrier: &str,
    at_once: bool,
    operation: impl Fn(&mut Communicator) -> Result<(), Error> + Clone + Send + 'static,
) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let options = options(carrier);
    for handle in world::threads(world::single(), RANKS).unwrap() {
        let (sender, options, operation) = (sender.clone(), options.clone(), operation.clone());
        thread::spawn(move || {
            let rank = handle.rank();
            let mut communicator = Communicator::new(handle, &options).unwrap();
            let mut result = operation(&mut communicator);
            if at_once && result.is_ok() {
                sender.send((rank, "it went well".to_owned())).unwrap();
                return;
            }
            result = result.and_then(|()| operation(&mut communicator));
            let result = result.and_then(|()| communicator.close());
            sender.send((rank, result.map_or_else(|error| error.to_string(), |()| "ok".to_owned()))).unwrap();
        });
    }
    // An error here means that a rank hangs.
    let mut told: Vec<(usize, String)> =
        (0..RANKS).map(|_| receiver.recv_timeout(PATIENCE).unwrap()).collect();
    told.sort();
    told.into_iter().map(|(_, text)| text).collect()
}

/// Panics unless every rank's error names rank 1's call and another rank's.
fn assert_told(case: &str, told: &[String], of_rank_1: &str, of_others: &str) {
    for text in told {
        let one = format!("rank 1 called {of_rank_1}");
        let named = text.contains(&one)
            && (text.contains(&format!("rank 0 called {of_others}"))
                || text.contains(&format!("rank 2 called {of_others}")));
        assert!(named, "{case}: {told:#?}\nnot told: {one}, and {of_others}");
    }
}

/// Plays all cases concurrently, over each carrier and for short and long messages: rank 1 calls `wrong` of
/// the others' call.
fn play(names: &[&'static str], wrong: fn(Call) -> Call, told_of: fn(Call) -> String) {
    thread::scope(|scope| {
        for &name in names {
            scope.spawn(move || {
                for (carrier, count) in
                    CARRIERS.into_iter().flat_map(|carrier| COUNTS.map(|count| (carrier, count)))
                {
                    let right = Call { name, count, root: 0, op: ReduceOp::Sum };
                    let told = told(carrier, NEEDS_ALL.contains(&name), move |communicator| {
                        let Call { name, count, root, op } =
                            if communicator.rank() == 1 { wrong(right) } else { right };
                        call::<f32>(communicator, name, count, root, op)
                    });
                    let case = format!("{name} of {count} over {carrier}");
                    assert_told(&case, &told, &told_of(wrong(right)), &told_of(right));
                }
            });
        }
    });
}

/// Text of a call in an error.
fn text(call: Call) -> String {
    let Call { name, count, root, op } = call;
    let op = if name.contains("reduce") { format!(", {op}") } else { String::new() };
    let rooted = ["broadcast", "reduce", "gather", "scatter"].contains(&name);
    let root = if rooted { format!(", root {root}") } else { String::new() };
    match name {
        "barrier" => name.to_owned(),
        "exchange" => format!("send/recv of {count} float"),
        _ => format!("{name} of {count} float{op}{root}"),
    }
}

fn other_lengths_are_told() {
    let names = [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "all_to_all",
        "all_to_all_v",
        "gather",
        "scatter",
        "send/recv",
        "exchange",
    ];
    // Shorter and longer than the others' messages, by an element, or by so much that another algorithm is
    // selected.
    play(&names, |right| Call { count: right.count + 1, ..right }, text);
    play(&names, |right| Call { count: right.count / 20, ..right }, text);
}

/// The first segments of the longer part are as long as the whole shorter one: 1 MiB.
fn longer_parts_of_whole_segments_are_told() {
    let name = "all_to_all_v";
    for carrier in CARRIERS {
        let of = |rank| Call { name, count: (1 << 18) + usize::from(rank == 1), root: 0, op: ReduceOp::Sum };
        let told = told(carrier, true, move |communicator| {
            let Call { name, count, root, op } = of(communicator.rank());
            call::<f32>(communicator, name, count, root, op)
        });
        assert_told(carrier, &told, &text(of(1)), &text(of(0)));
    }
}

fn other_roots_are_told() {
    let names = ["broadcast", "reduce", "gather", "scatter"];
    play(&names, |right| Call { root: 1, ..right }, text);
    play(&names, |right| Call { root: 2, ..right }, text);
}

fn other_operators_are_told() {
    let names = ["all_reduce", "reduce_scatter", "reduce"];
    play(&names, |right| Call { op: ReduceOp::Max, ..right }, text);
}

fn other_collectives_are_told() {
    let names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"];
    play(&names, |right| Call { name: "all_to_all", ..right }, text);
    play(&names, |right| Call { name: "barrier", ..right }, text);
    play(&["barrier"], |right| Call { name: "broadcast", ..right }, text);
    play(
        &["all_to_all"],
        |right| Call { name: "all_to_all_v", ..right },
        |call| match call.name {
            "all_to_all_v" => "all_to_all_v of float".to_owned(),
            _ => text(call),
        },
    );
}

fn other_types_are_told() {
    for provider in ["shm", "tcp"] {
        for count in COUNTS {
            for name in ["all_reduce", "broadcast", "gather", "all_to_all_v", "send/recv"] {
                let told = told(provider, NEEDS_ALL.contains(&name), move |communicator| {
                    // As many bytes.
                    let (root, op) = (0, ReduceOp::Sum);
                    if communicator.rank() == 1 {
                        call::<f64>(communicator, name, count / 2, root, op)
                    } else {
                        call::<f32>(communicator, name, count, root, op)
                    }
                });
                let case = format!("{name} of {count} over {provider}");
                for text in told {
                    assert!(text.contains("float") && text.contains("double"), "{case}: {text}");
                    assert!(
                        text.contains("rank 1 called") && text.contains(" while rank "),
                        "{case}: {text}"
                    );
                }
            }
        }
    }
}

fn other_options_are_told() {
    type Change = fn(&mut Options);
    let changes: [(Change, &str); 3] = [
        (|options| options.provider = Some("tcp".to_owned()), "provider = tcp"),
        (|options| options.set_algorithm(Collective::AllReduce, Algorithm::Ring), "all_reduce = ring"),
        (|options| options.segment = Some(1000), "segment = 1000"),
    ];
    for (change, text) in changes {
        let handles = world::threads(world::single(), RANKS).unwrap();
        thread::scope(|scope| {
            for handle in handles {
                scope.spawn(move || {
                    let mut options = Options::default();
                    if handle.rank() == 1 {
                        change(&mut options);
                    }
                    let error = Communicator::new(handle, &options).err().unwrap().to_string();
                    let told = error.contains("rank 0 uses ") && error.contains("and rank 1 uses ");
                    assert!(told && error.contains(text), "{error}");
                });
            }
        });
    }
}

/// Without a rank that waits, as some only send, it is noticed later: at the latest when the ranks close.
fn a_collective_too_few_is_told() {
    for provider in ["shm", "tcp"] {
        for count in COUNTS {
            let told = told(provider, false, move |communicator| {
                if communicator.rank() != 1 {
                    call::<f32>(communicator, "all_reduce", count, 0, ReduceOp::Sum)?;
                }
                call::<f32>(communicator, "broadcast", count, 0, ReduceOp::Sum)
            });
            let case = format!("{count} over {provider}");
            let (of_rank_1, of_others) =
                (format!("broadcast of {count} float"), format!("all_reduce of {count} float"));
            assert_told(&case, &told, &of_rank_1, &of_others);
        }
    }
}

/// Ranks that wait for longer than it takes to be compared, with calls of several kinds.
fn ranks_that_are_late_are_not_in_the_wrong() {
    for provider in ["shm", "tcp"] {
        let told = told(provider, false, |communicator| {
            let late = communicator.rank() == 2;
            for name in ["all_reduce", "broadcast", "exchange", "all_to_all_v"] {
                for count in COUNTS {
                    if late && count == COUNTS[0] {
                        thread::sleep(Duration::from_millis(1300));
                    }
                    call::<f32>(communicator, name, count, 0, ReduceOp::Sum)?;
                }
            }
            communicator.barrier()
        });
        assert_eq!(told, ["ok", "ok", "ok"], "{provider}");
    }
}
