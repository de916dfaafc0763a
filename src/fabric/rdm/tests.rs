//! Real endpoints of the installed libfabric: two in one process, or over `shm` in two.

use std::any;
use std::env;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fabric_sys::Version;

use super::*;

/// Set where a test is run once more, for its second side.
const SECOND: &str = "COLLECTIVES_TEST_SECOND_SIDE";

fn options(provider: &str) -> Options {
    Options {
        source: Some("127.0.0.1".to_owned()).filter(|_| provider == "tcp"),
        remote_memory: true,
        timeout: Some(Duration::from_secs(20)),
        ..Options::new(provider)
    }
}

/// Two endpoints that know each other, and what each calls the other.
fn pair() -> [(Endpoint, Peer); 2] {
    let options = options("tcp");
    acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()))
}

fn acquainted([mut one, mut other]: [Endpoint; 2]) -> [(Endpoint, Peer); 2] {
    let (to_one, to_other) = (one.address().to_vec(), other.address().to_vec());
    let (other_peer, one_peer) = (one.insert(&to_other).unwrap(), other.insert(&to_one).unwrap());
    [(one, other_peer), (other, one_peer)]
}

/// Over what [`sides`] are played. A second side is there for `shm` alone.
fn providers() -> Vec<&'static str> {
    if env::var_os(SECOND).is_some() { vec!["shm"] } else { vec!["tcp", "shm"] }
}

/// Both sides of a test, with a line between them: in threads, or over `shm` in processes, of which the second runs the
/// same test up to here.
fn sides<T: Fn()>(
    _test: T,
    provider: &str,
    one: impl FnOnce(&UnixStream),
    other: impl FnOnce(&UnixStream) + Send,
) {
    if env::var_os(SECOND).is_some() {
        return other(&UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap()));
    }
    let (here, there) = UnixStream::pair().unwrap();
    if provider != "shm" {
        return thread::scope(|scope| {
            scope.spawn(move || other(&there));
            one(&here);
        });
    }
    let test = any::type_name::<T>().split_once("::").unwrap().1;
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test]).env(SECOND, "1").stdin(Stdio::from(OwnedFd::from(there)));
    let second = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let first = catch_unwind(AssertUnwindSafe(|| one(&here)));
    drop(here);
    let second = second.wait_with_output().unwrap();
    let told = [&second.stdout, &second.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(second.status.success() && first.is_ok(), "{}:\n{}\n{}", second.status, told[0], told[1]);
}

/// As [`sides`], each with an endpoint that knows the other's.
fn play<T: Fn()>(
    test: T,
    options: &Options,
    one: impl FnOnce(Endpoint, Peer, &UnixStream),
    other: impl FnOnce(Endpoint, Peer, &UnixStream) + Send,
) {
    let met = |line: &UnixStream| meet(Endpoint::open(options).unwrap(), line);
    sides(
        test,
        &options.provider,
        |line| {
            let (endpoint, peer) = met(line);
            one(endpoint, peer, line);
        },
        |line| {
            let (endpoint, peer) = met(line);
            other(endpoint, peer, line);
        },
    );
}

/// Tells the other side the endpoint's address and learns that of the other's.
fn meet(mut endpoint: Endpoint, mut line: &UnixStream) -> (Endpoint, Peer) {
    let mut length = [0];
    line.write_all(&[endpoint.address().len() as u8]).unwrap();
    line.write_all(endpoint.address()).unwrap();
    line.read_exact(&mut length).unwrap();
    let mut address = vec![0; length[0].into()];
    line.read_exact(&mut address).unwrap();
    let peer = endpoint.insert(&address).unwrap();
    (endpoint, peer)
}

/// Tells the other side where a region is.
fn describe(endpoint: &mut Endpoint, peer: Peer, region: RemoteRegion) {
    let description = region.to_bytes();
    endpoint.scope(|scope| scope.send(peer, DESCRIPTION, &description).map(drop)).unwrap();
}

fn described(endpoint: &mut Endpoint, peer: Peer) -> RemoteRegion {
    let mut description = [0; RemoteRegion::BYTES];
    endpoint.scope(|scope| scope.receive(peer, DESCRIPTION, &mut description).map(drop)).unwrap();
    RemoteRegion::from_bytes(description)
}

/// The tag of such messages.
const DESCRIPTION: u64 = 100;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + seed) as u8).collect()
}

/// What the two sides of a pair do, each in a thread of its own.
fn both<A: Send, B: Send>(
    one: impl FnOnce(&mut Endpoint, Peer) -> A + Send,
    other: impl FnOnce(&mut Endpoint, Peer) -> B + Send,
) -> (A, B) {
    let [(mut first, to_other), (mut second, to_one)] = pair();
    thread::scope(|scope| {
        let first = scope.spawn(move || one(&mut first, to_other));
        let second = other(&mut second, to_one);
        (first.join().unwrap(), second)
    })
}

#[test]
fn messages_of_all_lengths_arrive_whole_and_by_tag() {
    const LENGTHS: [usize; 9] = [0, 1, 64, 128, 129, 4096, 4097, 100_000, 3 << 20];
    for provider in providers() {
        play(
            messages_of_all_lengths_arrive_whole_and_by_tag,
            &options(provider),
            |mut one, to_other, _| {
                for len in LENGTHS {
                    let (first, second) = (pattern(len, 1), pattern(len / 2, 2));
                    one.scope(|scope| {
                        let _first = scope.send(to_other, 1, &first)?;
                        let _second = scope.send(to_other, 2, &second)?;
                        Ok(())
                    })
                    .unwrap();
                }
                one.farewell(&[to_other], 3).unwrap();
            },
            |mut other, to_one, _| {
                for len in LENGTHS {
                    let (mut first, mut second) = (vec![0; len], vec![0; len]);
                    other
                        .scope(|scope| {
                            let later = scope.receive(to_one, 2, &mut second)?;
                            let sooner = scope.receive(to_one, 1, &mut first)?;
                            assert_eq!(scope.wait(later)?, Completion { len: len / 2, tag: 2 }, "{provider}");
                            assert_eq!(scope.wait(sooner)?, Completion { len, tag: 1 }, "{provider}");
                            Ok(())
                        })
                        .unwrap();
                    assert_eq!(first, pattern(len, 1), "{provider}, {len}");
                    assert_eq!(second[..len / 2], pattern(len / 2, 2), "{provider}, {len}");
                }
                other.farewell(&[to_one], 3).unwrap();
            },
        );
    }
}

#[test]
fn nothing_injected_is_lost_when_an_endpoint_is_closed() {
    // More than sockets hold.
    const MESSAGES: usize = 100_000;
    for provider in providers() {
        let many = if provider == "tcp" { MESSAGES } else { 500 };
        play(
            nothing_injected_is_lost_when_an_endpoint_is_closed,
            &options(provider),
            |mut one, to_other, mut line| {
                one.scope(|scope| {
                    // The buffer is needed no longer than the call.
                    (0..many).try_for_each(|message| scope.inject(to_other, 1, &[message as u8; 100]))
                })
                .unwrap();
                line.write_all(&[1]).unwrap();
                one.farewell(&[to_other], 2).unwrap();
            },
            |mut other, to_one, mut line| {
                // The first message is sent when both are connected.
                let mut got = [0; 100];
                other.scope(|scope| scope.receive(to_one, 1, &mut got).map(drop)).unwrap();
                line.read_exact(&mut [0]).unwrap();
                for message in 1..many {
                    other.scope(|scope| scope.receive(to_one, 1, &mut got).map(drop)).unwrap();
                    assert_eq!(got, [message as u8; 100], "{provider}");
                }
                other.farewell(&[to_one], 2).unwrap();
            },
        );
    }
}

#[test]
fn what_is_too_long_to_be_injected_is_told() {
    let [(mut one, to_other), _other] = pair();
    let longest = one.longest_inject();
    assert!(longest > 0);
    let error = one.scope(|scope| scope.inject(to_other, 1, &vec![0; longest + 1])).unwrap_err().to_string();
    assert!(
        error.contains(&format!("{} bytes are more than the {longest} that can be", longest + 1)),
        "{error}"
    );
}

#[test]
fn memory_of_a_peer_is_written_and_read() {
    for provider in providers() {
        play(
            memory_of_a_peer_is_written_and_read,
            &options(provider),
            |mut one, to_other, _| {
                let there = described(&mut one, to_other);
                let written = pattern(5000, 3);
                let mut read = vec![0; 6000];
                one.scope(|scope| {
                    let write = scope.write(to_other, &written, there, 1000)?;
                    scope.wait(write)?;
                    let read = scope.read(to_other, &mut read, there, 500)?;
                    scope.wait(read)?;
                    scope.inject_write(to_other, &[7; 10], there, 9000)
                })
                .unwrap();
                assert_eq!((&read[..500], &read[500..5500]), (&[0; 500][..], &written[..]), "{provider}");
                // These providers read after what was written before.
                let mut injected = [0; 10];
                one.scope(|scope| scope.read(to_other, &mut injected, there, 9000).map(drop)).unwrap();
                assert_eq!(injected, [7; 10], "{provider}");
                let beyond = one.scope(|scope| scope.write(to_other, &written, there, 5001).map(drop));
                let text = beyond.unwrap_err().to_string();
                assert!(
                    text.contains("5000 bytes from byte 5001 on are more than the region's 10000"),
                    "{text}"
                );
                one.farewell(&[to_other], 2).unwrap();
            },
            |mut other, to_one, _| {
                let region = other.region(10_000).unwrap();
                describe(&mut other, to_one, region.remote());
                other.farewell(&[to_one], 2).unwrap();
                drop(other);
                // It outlives its endpoint as memory.
                let bytes: Vec<u8> = region.bytes().iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
                assert_eq!(bytes[1000..6000], pattern(5000, 3), "{provider}");
                assert_eq!(bytes[9000..9010], [7; 10], "{provider}");
                let wait_once = bytes[..1000].iter().chain(&bytes[6000..9000]).chain(&bytes[9010..]);
                assert!(wait_once.copied().all(|byte| byte == 0), "{provider}");
            },
        );
    }
}

/// A peer that writes when endpoint and region are gone changes nothing but memory of regions.
#[test]
fn what_is_written_late_over_shm_is_written_to_no_other_memory() {
    // Long enough to go straight to the address, and one that the allocator would use again.
    const LEN: usize = 40_000;
    play(
        what_is_written_late_over_shm_is_written_to_no_other_memory,
        &options("shm"),
        |mut one, to_other, mut line| {
            let there = described(&mut one, to_other);
            one.farewell(&[to_other], 2).unwrap();
            line.read_exact(&mut [0]).unwrap();
            // Whether it is told that the region is gone does not matter.
            let _late = one.scope(|scope| scope.write(to_other, &[1; LEN], there, 0).map(drop));
            line.write_all(&[1]).unwrap();
        },
        |mut other, to_one, mut line| {
            let region = other.region(LEN).unwrap();
            let start = region.bytes().as_ptr();
            describe(&mut other, to_one, region.remote());
            other.farewell(&[to_one], 2).unwrap();
            drop((other, region));
            let own: Vec<Vec<u8>> = (0..100).map(|_| vec![7; LEN]).collect();
            line.write_all(&[1]).unwrap();
            line.read_exact(&mut [0]).unwrap();
            assert!(own.iter().flatten().all(|&byte| byte == 7), "a late write has changed other memory");
            let reuse = Endpoint::open(&options("shm")).unwrap().region(LEN).unwrap();
            assert_eq!(reuse.bytes().as_ptr(), start);
            assert!(reuse.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
        },
    );
}

#[test]
fn memory_stays_as_long_as_anything_of_its_domain_is_open() {
    let mut endpoints = Endpoint::open_sharing(&options("tcp"), 2).unwrap();
    let memory = endpoints[0].region(8).unwrap().memory_of_test();
    drop(endpoints.remove(0));
    assert!(memory.upgrade().is_some());
    drop(endpoints);
    assert!(memory.upgrade().is_none());
}

#[test]
fn endpoints_of_one_process_do_not_know_each_other_over_shm() {
    let [mut one, other] = [0; 2].map(|_| Endpoint::open(&options("shm")).unwrap());
    for address in [other.address().to_vec(), one.address().to_vec()] {
        let error = one.insert(&address).unwrap_err().to_string();
        assert!(error.contains("endpoints of one process crash each other over shm"), "{error}");
    }
}

#[test]
fn a_longer_message_is_an_error_of_its_receive() {
    let send = |one: &mut Endpoint, to_other| {
        one.scope(|scope| scope.send(to_other, 1, &[1; 100]).map(drop)).unwrap();
    };
    both(send, |other, to_one| {
        let mut got = [0; 10];
        let error = other.scope(|scope| {
            let operation = scope.receive(to_one, 1, &mut got)?;
            scope.wait(operation).map(drop)
        });
        let Err(Error::Call(failure)) = error else { panic!("{error:?}") };
        assert_eq!((failure.operation, failure.code), ("fi_trecv", fabric_sys::FI_ETRUNC as i32));
    });
}

#[test]
fn what_ends_with_operations_in_flight_closes_the_endpoint() {
    let message = "the endpoint was closed when an operation failed";
    let [(mut one, to_other), _other] = pair();
    let mut buffer = [0; 8];
    let result: Result<(), Error> = one.scope(|scope| {
        let _never = scope.receive(to_other, 1, &mut buffer)?;
        Err(Error::Closed { operation: "of the test" })
    });
    assert!(matches!(result, Err(Error::Closed { operation: "of the test" })));
    let reuse = one.scope(|scope| scope.send(to_other, 1, &buffer).map(drop)).unwrap_err().to_string();
    assert!(reuse.contains(message), "{reuse}");
    assert!(one.region(8).is_err_and(|error| error.to_string().contains(message)));

    let [(mut one, to_other), _other] = pair();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one.scope(|scope| -> Result<(), Error> {
            let _never = scope.receive(to_other, 1, &mut buffer)?;
            panic!("of the test")
        })
    }));
    assert!(panicked.is_err());
    assert!(one.progress().is_err_and(|error| error.to_string().contains(message)));
}

#[test]
fn waiting_has_an_end_and_says_for_what() {
    let [(mut one, to_other), _other] = pair();
    one.timeout = Some(Duration::from_millis(50));
    let mut buffer = [0; 8];
    let error = one.scope(|scope| scope.receive(to_other, 1, &mut buffer).map(drop)).unwrap_err();
    assert!(error.to_string().contains("nothing has completed for 0.05 s"), "{error}");
}

#[test]
fn who_only_injects_or_computes_has_not_waited() {
    let (tell, told) = mpsc::channel();
    let injected = move |one: &mut Endpoint, to_other| {
        one.farewell(&[to_other], 1).unwrap();
        one.timeout = Some(Duration::from_millis(200));
        // Looks at the clock once.
        let look = |scope: &mut Scope<'_>| (0..1 << 13).try_for_each(|_| scope.progress().map(drop));
        let compute = || thread::sleep(Duration::from_millis(150));
        // No completion in all this time.
        one.scope(|scope| {
            for _ in 0..3 {
                scope.inject(to_other, 2, &[])?;
                look(scope)?;
                compute();
            }
            compute();
            Ok(())
        })
        .unwrap();
        (0..1 << 13).try_for_each(|_| one.progress().map(drop)).unwrap();
        compute();
        compute();
        one.scope(look).unwrap();
        // Who serves its peers alone waits for nothing.
        for _ in 0..3 {
            (0..1 << 13).try_for_each(|_| one.progress().map(drop)).unwrap();
            compute();
        }
        // What is waited for comes soon after that begins.
        one.scope(|scope| {
            let received = scope.receive(to_other, 3, &mut [])?;
            look(scope)?;
            compute();
            compute();
            tell.send(()).unwrap();
            scope.wait(received).map(drop)
        })
        .unwrap();
    };
    both(injected, move |other, to_one| {
        other.farewell(&[to_one], 1).unwrap();
        told.recv().unwrap();
        thread::sleep(Duration::from_millis(20));
        for _ in 0..3 {
            other.scope(|scope| scope.receive(to_one, 2, &mut []).map(drop)).unwrap();
        }
        other.scope(|scope| scope.send(to_one, 3, &[]).map(drop)).unwrap();
    });
}

#[test]
fn a_peer_of_another_endpoint_is_refused() {
    let [(mut one, _), (_, to_one)] = pair();
    let error = one.scope(|scope| scope.send(to_one, 1, &[1]).map(drop)).unwrap_err();
    assert!(error.to_string().contains("the peer is one of another endpoint"), "{error}");
}

#[test]
fn operations_take_the_place_of_earlier_ones() {
    let send = |one: &mut Endpoint, to_other| {
        let data = pattern(1000, 1);
        for _ in 0..100 {
            one.scope(|scope| scope.send(to_other, 1, &data).map(drop)).unwrap();
        }
        one.slots.all.len()
    };
    let places = both(send, |other, to_one| {
        let mut got = [0; 1000];
        for _ in 0..100 {
            other.scope(|scope| scope.receive(to_one, 1, &mut got).map(drop)).unwrap();
        }
        other.slots.all.len()
    });
    assert_eq!(places, (1, 1));
}

#[test]
fn a_provider_that_is_not_there_is_told() {
    let error = Endpoint::open(&Options::new("cxi")).err().unwrap().to_string();
    assert!(error.contains("offers no reliable endpoint for messages with it here"), "{error}");
}

/// Sends a message to and fro, and writes a region of the second's.
fn talk(mut one: Endpoint, to_other: Peer) {
    let sent = pattern(5000, 1);
    let mut got = vec![0; 5000];
    one.scope(|scope| {
        let received = scope.receive(to_other, 2, &mut got)?;
        scope.inject(to_other, 1, &sent[..50])?;
        scope.wait(received).map(drop)
    })
    .unwrap();
    assert_eq!(got, sent);
    let there = described(&mut one, to_other);
    one.scope(|scope| scope.write(to_other, &sent, there, 0).map(drop)).unwrap();
    one.farewell(&[to_other], 3).unwrap();
}

/// The second's part.
fn answer(mut other: Endpoint, to_one: Peer) {
    let sent = pattern(5000, 1);
    let region = other.region(5000).unwrap();
    let mut got = [0; 50];
    other.scope(|scope| scope.receive(to_one, 1, &mut got).map(drop)).unwrap();
    assert_eq!(got, sent[..50]);
    other.scope(|scope| scope.send(to_one, 2, &sent).map(drop)).unwrap();
    describe(&mut other, to_one, region.remote());
    other.farewell(&[to_one], 3).unwrap();
    assert!(region.bytes().iter().zip(&sent).all(|(there, sent)| there.load(Ordering::Relaxed) == *sent));
}

#[test]
fn endpoints_of_several_threads_share_a_domain() {
    for provider in providers() {
        let all = |line: &UnixStream, part: fn(Endpoint, Peer)| {
            let endpoints = Endpoint::open_sharing(&options(provider), 3).unwrap();
            let met: Vec<_> = endpoints.into_iter().map(|endpoint| meet(endpoint, line)).collect();
            thread::scope(|scope| {
                met.into_iter().for_each(|(endpoint, peer)| drop(scope.spawn(move || part(endpoint, peer))));
            });
        };
        let test = endpoints_of_several_threads_share_a_domain;
        sides(test, provider, |line| all(line, talk), |line| all(line, answer));
    }
}

#[test]
fn threads_that_wait_can_sleep() {
    let options = Options { blocking: true, ..options("tcp") };
    let both = || acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()));
    let [(one, to_other), (other, to_one)] = both();
    thread::scope(|scope| {
        scope.spawn(move || talk(one, to_other));
        answer(other, to_one);
    });
    // And see the clock.
    let options = Options { timeout: Some(Duration::from_millis(50)), ..options };
    let [(mut one, to_other), _other] = acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()));
    let mut buffer = [0; 8];
    let error = one.scope(|scope| scope.receive(to_other, 1, &mut buffer).map(drop)).unwrap_err();
    assert!(error.to_string().contains("nothing has completed for 0.05 s"), "{error}");
}

#[test]
fn messages_without_a_tag_arrive_in_order() {
    for provider in providers() {
        let options = Options { untagged: true, ..options(provider) };
        let (short, long) = (pattern(60, 1), pattern(100_000, 2));
        play(
            messages_without_a_tag_arrive_in_order,
            &options,
            |mut one, to_other, _| {
                one.scope(|scope| {
                    scope.inject_untagged(to_other, &short)?;
                    let _tagged = scope.send(to_other, 1, &short)?;
                    scope.send_untagged(to_other, &long).map(drop)
                })
                .unwrap();
                one.farewell(&[to_other], 2).unwrap();
            },
            |mut other, to_one, _| {
                let (mut first, mut second, mut tagged) = (vec![0; 60], vec![0; 100_000], vec![0; 60]);
                let [first_place, second_place] = [&mut first, &mut second].map(|buffer| shared(buffer));
                other
                    .scope(|scope| {
                        let first = scope.receive_untagged(first_place)?;
                        let _second = scope.receive_untagged(second_place)?;
                        let _tagged = scope.receive(to_one, 1, &mut tagged)?;
                        assert_eq!(scope.wait(first)?.len, 60);
                        Ok(())
                    })
                    .unwrap();
                other.farewell(&[to_one], 2).unwrap();
                assert!(first == short && second == long && tagged == short, "{provider}");
            },
        );
    }
}

#[test]
fn shared_bytes_are_seen_while_another_thread_uses_the_scope() {
    let long = &pattern(1 << 20, 1)[..];
    let send = |one: &mut Endpoint, to_other| {
        one.scope(|scope| scope.send(to_other, 1, long).map(drop)).unwrap();
        one.farewell(&[to_other], 2).unwrap();
    };
    both(send, |other, to_one| {
        let mut got = vec![0; long.len()];
        let bytes = shared(&mut got);
        let seen = other.scope(|scope| {
            let received = scope.receive_shared(to_one, 1, bytes)?;
            thread::scope(|threads| {
                let waiting = threads.spawn(move || scope.wait(received));
                while bytes[long.len() - 1].load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                waiting.join().unwrap().map(|message| message.len)
            })
        });
        assert_eq!(seen.unwrap(), long.len());
        assert!(got == long);
        other.farewell(&[to_one], 2).unwrap();
    });
}

#[test]
fn what_has_ended_is_counted() {
    let all = Counts { completed: 11, failed: 0 };
    let old = Fabric::load().unwrap().version() < Version::new(1, 18);
    if old {
        let error = Endpoint::open(&Options { counter: true, ..options("tcp") }).err().unwrap().to_string();
        assert!(error.contains("before libfabric 1.18 it crashes"), "{error}");
    }
    for provider in if old { vec!["shm"] } else { providers() } {
        let options = Options { counter: true, ..options(provider) };
        play(
            what_has_ended_is_counted,
            &options,
            |mut one, to_other, _| {
                let counts = one
                    .scope(|scope| {
                        (0..10).try_for_each(|_| scope.inject(to_other, 1, &[1; 8]))?;
                        let _sent = scope.send(to_other, 1, &[2; 8])?;
                        scope.wait_for_count(11)
                    })
                    .unwrap();
                assert_eq!(counts, all, "{provider}");
                one.farewell(&[to_other], 2).unwrap();
            },
            |mut other, to_one, _| {
                let mut got = [0; 8];
                for _ in 0..11 {
                    other.scope(|scope| scope.receive(to_one, 1, &mut got).map(drop)).unwrap();
                }
                assert_eq!(other.counts().unwrap(), all, "{provider}");
                other.farewell(&[to_one], 2).unwrap();
            },
        );
    }
    let [(mut one, _), _] = pair();
    assert!(one.counts().is_err_and(|error| error.to_string().contains("without a counter")));
}

#[test]
fn what_was_not_asked_for_is_refused() {
    let options = Options { remote_memory: false, ..options("tcp") };
    let [(mut one, to_other), _other] = acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()));
    let there = RemoteRegion::from_bytes([1; RemoteRegion::BYTES]);
    let mut errors = vec![one.region(8).err().unwrap()];
    let (mut place, mut plain) = ([0; 8], [0; 8]);
    let plain = shared(&mut plain);
    one.scope(|scope| {
        errors.extend([
            scope.write(to_other, &[1], there, 0).unwrap_err(),
            scope.inject_write(to_other, &[1], there, 0).unwrap_err(),
            scope.read(to_other, &mut place, there, 0).unwrap_err(),
            scope.send_untagged(to_other, &[1]).unwrap_err(),
            scope.inject_untagged(to_other, &[1]).unwrap_err(),
            scope.receive_untagged(plain).unwrap_err(),
        ]);
        Ok(())
    })
    .unwrap();
    for (error, option) in errors.into_iter().zip(["remote_memory"; 4].into_iter().chain(["untagged"; 3])) {
        let text = error.to_string();
        assert!(text.contains(&format!("was opened without Options::{option}")), "{text}");
    }
}

#[test]
fn room_for_any_number_of_peers_can_be_asked_for() {
    for peers in [0, 1 << 60, usize::MAX] {
        let options = Options { peers, ..options("tcp") };
        let [(mut one, to_other), (mut other, to_one)] =
            acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()));
        thread::scope(|scope| {
            scope.spawn(move || one.farewell(&[to_other], 1).unwrap());
            other.farewell(&[to_one], 1).unwrap();
        });
    }
}

#[test]
fn a_domain_is_chosen_by_its_name() {
    let loopback = Endpoint::open(&options("tcp")).unwrap().domain().to_owned();
    let named = Options { source: None, domain: Some(loopback.clone()), ..options("tcp") };
    assert_eq!(Endpoint::open(&named).unwrap().domain(), loopback);
    let error = Endpoint::open(&Options { domain: Some("nowhere".to_owned()), ..named }).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("it has no domain 'nowhere' for this; it has ") && text.contains(&loopback),
        "{text}"
    );
}

#[test]
fn a_local_address_that_is_not_there_is_told() {
    let text = |options: Options| Endpoint::open(&options).err().unwrap().to_string();
    let from = |source: &str| Options { source: Some(source.to_owned()), ..options("tcp") };
    // A name without an address, an address of no host, and where something else is not there, either.
    let (nowhere, alien) = ("nowhere.invalid", "203.0.113.9");
    for (source, asked) in [
        (nowhere, from(nowhere)),
        (alien, from(alien)),
        (nowhere, Options { domain: Some("nowhere".to_owned()), ..from(nowhere) }),
        (nowhere, Options { cuda: true, ..from(nowhere) }),
    ] {
        let told = text(asked);
        assert!(told.contains(&format!("it has no local address '{source}' to bind to; choose")), "{told}");
        assert!(told.contains("nccl-bench fabric info -p ") && told.contains(" -t rdm -v"), "{told}");
    }
    // A provider that is not there lacks more than the address.
    let told = text(Options { provider: "verbs;nothing".to_owned(), ..from(nowhere) });
    assert!(told.contains("see `nccl-bench fabric info -p 'verbs;nothing' -t rdm`"), "{told}");
}

/// What operations on a device's memory do, with the host's for a device: `shm` takes it as one.
#[test]
fn memory_that_is_registered_is_sent_received_written_and_read() {
    let options = Options { cuda: true, ..options("shm") };
    let host = (fabric_sys::FI_HMEM_SYSTEM, 0);
    let mut own = [0; 100];
    let mut alone = Endpoint::open(&options).unwrap();
    // SAFETY: the array outlives the endpoint.
    let memory = unsafe { alone.register_device(host, own.as_mut_ptr().expose_provenance() as u64, 100) };
    assert_eq!(memory.unwrap().remote().len(), 100);
    assert!(!alone.is_direct(), "shm promises nothing");
    // Those that the tests run with are built without CUDA.
    // SAFETY: the array outlives the endpoint.
    let refused = unsafe { alone.register_cuda(0, own.as_mut_ptr().expose_provenance() as u64, 100) };
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("has no CUDA: it was built without it"), "{text}");
    drop(alone);
    let sent = &pattern(20_000, 5)[..];
    play(
        memory_that_is_registered_is_sent_received_written_and_read,
        &options,
        |mut one, to_other, _| {
            let memory: Vec<AtomicU8> = sent.iter().copied().map(AtomicU8::new).collect();
            let address = memory.as_ptr().expose_provenance() as u64;
            // SAFETY: the vector outlives the endpoint.
            let registered = unsafe { one.register_device(host, address, 20_000) }.unwrap();
            one.scope(|scope| scope.send_device(to_other, Some(1), &registered, 0..50).map(drop)).unwrap();
            one.scope(|scope| scope.send_device(to_other, Some(1), &registered, 50..10_000).map(drop))
                .unwrap();
            let remote = described(&mut one, to_other);
            one.scope(|scope| {
                let written = scope.write_device(to_other, &registered, 10_000..15_000, remote, 10_000)?;
                scope.wait(written)?;
                scope.read_device(to_other, &registered, 15_000..20_000, remote, 5000).map(drop)
            })
            .unwrap();
            let beyond = one
                .scope(|scope| scope.send_device(to_other, Some(1), &registered, 19_999..20_001).map(drop));
            let text = beyond.unwrap_err().to_string();
            assert!(text.contains("19999..20001 are not all within the 20000"), "{text}");
            one.farewell(&[to_other], 2).unwrap();
            drop(one);
            let memory: Vec<u8> = memory.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
            assert_eq!((&memory[..15_000], &memory[15_000..]), (&sent[..15_000], &sent[5000..10_000]));
        },
        |mut other, to_one, _| {
            let memory: Vec<AtomicU8> = [0; 20_000].map(AtomicU8::new).into();
            let address = memory.as_ptr().expose_provenance() as u64;
            // SAFETY: as above.
            let registered = unsafe { other.register_device(host, address, 20_000) }.unwrap();
            other
                .scope(|scope| {
                    let _first = scope.receive_device(to_one, Some(1), &registered, 0..50)?;
                    scope.receive_device(to_one, Some(1), &registered, 50..10_000).map(drop)
                })
                .unwrap();
            describe(&mut other, to_one, registered.remote());
            other.farewell(&[to_one], 2).unwrap();
            drop(other);
            let memory: Vec<u8> = memory.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
            assert_eq!(memory[..15_000], sent[..15_000]);
            assert!(memory[15_000..].iter().all(|&byte| byte == 0));
        },
    );
}

#[test]
fn a_provider_without_device_memory_is_told() {
    let error = Endpoint::open(&Options { cuda: true, ..options("tcp") }).err().unwrap().to_string();
    assert!(error.contains("it moves memory of the host alone") && error.contains("FI_HMEM"), "{error}");
    let [(mut one, _), _] = pair();
    // SAFETY: it is refused.
    let error = unsafe { one.register_cuda(0, 4096, 1) }.unwrap_err().to_string();
    assert!(error.contains("opened for memory of the host alone"), "{error}");
}
