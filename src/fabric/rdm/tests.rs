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

use super::*;
use sides::*;

mod memory;
mod opening;
mod sides;

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
    assert!(error.contains(&format!("{} bytes are more than {longest}, the limit", longest + 1)), "{error}");
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
    let message = "the endpoint was closed after a failed operation";
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
    one.options.timeout = Some(Duration::from_millis(50));
    let mut buffer = [0; 8];
    let error = one.scope(|scope| scope.receive(to_other, 1, &mut buffer).map(drop)).unwrap_err();
    assert!(error.to_string().contains("not complete after 0.05 s, the timeout"), "{error}");
}

#[test]
fn who_only_injects_or_computes_has_not_waited() {
    let (tell, told) = mpsc::channel();
    let injected = move |one: &mut Endpoint, to_other| {
        one.farewell(&[to_other], 1).unwrap();
        one.options.timeout = Some(Duration::from_millis(200));
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
        // An endpoint that only serves its peers does not time out.
        for _ in 0..3 {
            (0..1 << 13).try_for_each(|_| one.progress().map(drop)).unwrap();
            compute();
        }
        // The message arrives soon after the wait begins.
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
    // SAFETY: not accessed, since all accesses are refused.
    let there = unsafe { RemoteRegion::from_bytes([1; RemoteRegion::BYTES], to_one) };
    let mut place = [0; 8];
    let mut errors = Vec::new();
    one.scope(|scope| {
        errors.extend([
            scope.send(to_one, 1, &[1]).unwrap_err(),
            scope.write(&[1], there, 0).unwrap_err(),
            scope.inject_write(&[1], there, 0).unwrap_err(),
            scope.read(&mut place, there, 0).unwrap_err(),
        ]);
        Ok(())
    })
    .unwrap();
    for error in errors {
        assert!(error.to_string().contains("the peer belongs to another endpoint"), "{error}");
    }
}

#[test]
fn an_operation_of_another_endpoint_is_refused() {
    let send = |one: &mut Endpoint, to_other| one.scope(|scope| scope.send(to_other, 1, &[1])).unwrap();
    let (sent, received) = both(send, |other, to_one| {
        let mut place = [0];
        // Also the first operation of its endpoint: only the endpoint differs.
        other.scope(|scope| scope.receive(to_one, 1, &mut place)).unwrap()
    });
    let [(mut one, _), _] = pair();
    for operation in [sent, received] {
        let error = one.scope(|scope| scope.wait(operation)).unwrap_err();
        assert!(error.to_string().contains("the operation belongs to another endpoint"), "{error}");
    }
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

/// Sends a message to and fro, and writes a region of the second endpoint's if endpoints may have regions.
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
    if one.options.remote_memory {
        let there = described(&mut one, to_other);
        one.scope(|scope| scope.write(&sent, there, 0).map(drop)).unwrap();
    }
    one.farewell(&[to_other], 3).unwrap();
}

/// The second's part.
fn answer(mut other: Endpoint, to_one: Peer) {
    let sent = pattern(5000, 1);
    let region = other.options.remote_memory.then(|| other.region(5000).unwrap());
    let mut got = [0; 50];
    other.scope(|scope| scope.receive(to_one, 1, &mut got).map(drop)).unwrap();
    assert_eq!(got, sent[..50]);
    other.scope(|scope| scope.send(to_one, 2, &sent).map(drop)).unwrap();
    if let Some(region) = &region {
        describe(&mut other, to_one, region.description());
    }
    other.farewell(&[to_one], 3).unwrap();
    let written = region.iter().flat_map(|region| region.bytes().iter().zip(&sent));
    assert!(written.into_iter().all(|(there, sent)| there.load(Ordering::Relaxed) == *sent));
}

#[test]
fn endpoints_of_several_threads_share_a_domain() {
    for provider in providers() {
        let refused = Endpoint::open_sharing(&options(provider), 3).err().unwrap().to_string();
        assert!(refused.contains("cannot share a domain"), "{refused}");
        let all = |line: &UnixStream, part: fn(Endpoint, Peer)| {
            let options = Options { remote_memory: false, ..options(provider) };
            let endpoints = Endpoint::open_sharing(&options, 3).unwrap();
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
    assert!(error.to_string().contains("not complete after 0.05 s, the timeout"), "{error}");
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
                    scope.inject(to_other, None, &short)?;
                    let _tagged = scope.send(to_other, 1, &short)?;
                    scope.send(to_other, None, &long).map(drop)
                })
                .unwrap();
                one.farewell(&[to_other], 2).unwrap();
            },
            |mut other, to_one, _| {
                let (mut first, mut second, mut tagged) = (vec![0; 60], vec![0; 100_000], vec![0; 60]);
                other
                    .scope(|scope| {
                        let first = scope.receive(to_one, None, &mut first)?;
                        let _second = scope.receive(to_one, None, &mut second)?;
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
            let received = scope.receive(to_one, 1, bytes)?;
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
