//! Regions, and memory of devices.

use super::*;

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
                    let write = scope.write(&written, there, 1000)?;
                    scope.wait(write)?;
                    let read = scope.read(&mut read, there, 500)?;
                    scope.wait(read)?;
                    scope.inject_write(&[7; 10], there, 9000)
                })
                .unwrap();
                assert_eq!((&read[..500], &read[500..5500]), (&[0; 500][..], &written[..]), "{provider}");
                // These providers order a read after earlier writes.
                let mut injected = [0; 10];
                one.scope(|scope| scope.read(&mut injected, there, 9000).map(drop)).unwrap();
                assert_eq!(injected, [7; 10], "{provider}");
                let beyond = one.scope(|scope| scope.write(&written, there, 5001).map(drop));
                let text = beyond.unwrap_err().to_string();
                assert!(text.contains("5000 bytes at offset 5001 exceed the region's 10000"), "{text}");
                one.farewell(&[to_other], 2).unwrap();
            },
            |mut other, to_one, _| {
                let region = other.region(10_000).unwrap();
                describe(&mut other, to_one, region.description());
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

/// A write of a peer after the end of endpoint and region changes only memory of regions.
#[test]
fn what_is_written_late_over_shm_is_written_to_no_other_memory() {
    // Long enough to go straight to the address, and for the allocator to use the memory again.
    const LEN: usize = 40_000;
    play(
        what_is_written_late_over_shm_is_written_to_no_other_memory,
        &options("shm"),
        |mut one, to_other, mut line| {
            let there = described(&mut one, to_other);
            one.farewell(&[to_other], 2).unwrap();
            line.read_exact(&mut [0]).unwrap();
            // It may get an error for the removed region, or not.
            let _late = one.scope(|scope| scope.write(&[1; LEN], there, 0).map(drop));
            line.write_all(&[1]).unwrap();
        },
        |mut other, to_one, mut line| {
            let region = other.region(LEN).unwrap();
            let start = region.bytes().as_ptr();
            describe(&mut other, to_one, region.description());
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
fn memory_stays_as_long_as_its_endpoint_is_open() {
    let mut endpoint = Endpoint::open(&options("tcp")).unwrap();
    let memory = endpoint.region(8).unwrap().memory_of_test();
    assert!(memory.upgrade().is_some());
    drop(endpoint);
    assert!(memory.upgrade().is_none());
}

/// Operations on device memory, with host memory in its place: `shm` accepts it as such.
#[test]
fn memory_that_is_registered_is_sent_received_written_and_read() {
    let options = Options { cuda: true, ..options("shm") };
    let host = (fabric_sys::FI_HMEM_SYSTEM, 0);
    let mut own = [0; 100];
    let mut alone = Endpoint::open(&options).unwrap();
    // SAFETY: the array outlives the endpoint.
    let memory = unsafe { alone.register_device(host, own.as_mut_ptr().expose_provenance() as u64, 100) };
    let description = memory.unwrap().description();
    assert_eq!(description[16..], 100_u64.to_le_bytes(), "{description:?}");
    assert!(!alone.is_direct(), "shm promises nothing");
    // The libraries of the tests are built without CUDA. SAFETY: the array outlives the endpoint.
    let refused = unsafe { alone.register_cuda(0, own.as_mut_ptr().expose_provenance() as u64, 100) };
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("does not support CUDA: it was built without CUDA"), "{text}");
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
            one.scope(|scope| scope.send(to_other, 1, registered.range(0..50)).map(drop)).unwrap();
            one.scope(|scope| scope.send(to_other, 1, registered.range(50..10_000)).map(drop)).unwrap();
            let remote = described(&mut one, to_other);
            one.scope(|scope| {
                let written = scope.write(registered.range(10_000..15_000), remote, 10_000)?;
                scope.wait(written)?;
                scope.read(registered.range(15_000..20_000), remote, 5000).map(drop)
            })
            .unwrap();
            let beyond =
                one.scope(|scope| scope.send(to_other, 1, registered.range(19_999..20_001)).map(drop));
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
                    let _first = scope.receive(to_one, 1, registered.range(0..50))?;
                    scope.receive(to_one, 1, registered.range(50..10_000)).map(drop)
                })
                .unwrap();
            describe(&mut other, to_one, registered.description());
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
    assert!(error.contains("it supports host memory only") && error.contains("FI_HMEM"), "{error}");
    let [(mut one, _), _] = pair();
    // SAFETY: it is refused.
    let error = unsafe { one.register_cuda(0, 4096, 1) }.unwrap_err().to_string();
    assert!(error.contains("opened for host memory only"), "{error}");
}
