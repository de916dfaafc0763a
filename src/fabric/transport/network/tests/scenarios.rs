//! Scenarios for every rank of a job.

use super::*;

pub(super) fn wait(network: &mut Network, requests: &[MessageRequest]) -> Result<(), Error> {
    let start = Instant::now();
    let mut pending = requests.to_vec();
    loop {
        pending.retain(|&request| !network.is_done(request));
        if pending.is_empty() {
            return Ok(());
        }
        network.make_progress()?;
        assert!(start.elapsed() < GIVE_UP, "{} requests never complete", pending.len());
    }
}

pub(super) fn pattern(from: usize, to: usize, length: usize, salt: usize) -> Vec<u8> {
    let mut state = (from * 31 + to * 17 + salt * 101 + length) as u64 | 1;
    let mut data = vec![0; length];
    for chunk in data.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&state.to_be_bytes()[..chunk.len()]);
    }
    data
}

/// Every rank sends messages of all sizes to every other, concurrently.
pub(super) fn exchange(network: &mut Network) {
    let (rank, size) = (network.rank(), network.size());
    for (step, length) in SIZES.into_iter().enumerate() {
        let peers: Vec<usize> = (0..size).filter(|&peer| peer != rank).collect();
        let outgoing: Vec<Vec<u8>> = peers.iter().map(|&peer| pattern(rank, peer, length, 0)).collect();
        let mut incoming: Vec<Vec<u8>> = peers.iter().map(|_| vec![0; length]).collect();
        let mut requests = Vec::new();
        for (&peer, buffer) in peers.iter().zip(&mut incoming) {
            // SAFETY: the buffers live until all requests are complete, and a failure ends the process or
            // test.
            requests.push(unsafe {
                network.post_receive(peer, step as u64, buffer.as_mut_ptr(), length).unwrap()
            });
        }
        for (&peer, buffer) in peers.iter().zip(&outgoing) {
            // SAFETY: as above.
            requests.push(unsafe { network.post_send(peer, step as u64, buffer.as_ptr(), length).unwrap() });
        }
        wait(network, &requests).unwrap();
        for (&peer, buffer) in peers.iter().zip(&incoming) {
            assert!(
                *buffer == pattern(peer, rank, length, 0),
                "{length} bytes from rank {peer} arrived changed"
            );
        }
    }
    assert!(network.endpoints.iter().all(|endpoint| endpoint.in_flight() == 0));
    // A rank that ends is taken for dead by ranks that still wait.
    network.world.barrier().unwrap();
}

/// Many messages in flight from rank 0 to rank 1, received in another order than they were sent; with
/// `unexpected`, half of them are asked for only when the other half has arrived.
pub(super) fn out_of_order(network: &mut Network, unexpected: bool) {
    const COUNT: usize = 600;
    const LENGTHS: [usize; 4] = [8, 200, 5000, 20_000];
    let length = |tag: usize| LENGTHS[tag % LENGTHS.len()];
    let order = |salt: usize| (0..COUNT).map(move |index| (index * 7 + salt) % COUNT);
    match network.rank() {
        0 => {
            let messages: Vec<Vec<u8>> = (0..COUNT).map(|tag| pattern(0, 1, length(tag), tag)).collect();
            let mut requests = Vec::new();
            network.world.barrier().unwrap();
            for tag in order(0) {
                // SAFETY: the messages outlive the requests: these are waited for below.
                requests.push(unsafe {
                    network.post_send(1, tag as u64, messages[tag].as_ptr(), length(tag)).unwrap()
                });
            }
            wait(network, &requests).unwrap();
        }
        1 => {
            let mut buffers: Vec<Vec<u8>> = (0..COUNT).map(|tag| vec![0; length(tag)]).collect();
            let halves = if unexpected { 2 } else { 1 };
            for half in 0..halves {
                let mut requests = Vec::new();
                for tag in order(13).filter(|tag| tag % halves == half) {
                    let data = buffers[tag].as_mut_ptr();
                    // SAFETY: the buffers outlive the requests: these are waited for below.
                    requests.push(unsafe { network.post_receive(0, tag as u64, data, length(tag)).unwrap() });
                }
                if half == 0 {
                    network.world.barrier().unwrap();
                }
                wait(network, &requests).unwrap();
            }
            for (tag, buffer) in buffers.iter().enumerate() {
                assert!(*buffer == pattern(0, 1, length(tag), tag), "message {tag} arrived changed");
            }
        }
        _ => {}
    }
    network.world.barrier().unwrap();
}

/// Rank 0 sends fewer or more bytes than rank 1 expects.
pub(super) fn wrong_length(network: &mut Network, sent: usize, expected: usize) {
    let seen = PathBuf::from(env::var("COLLECTIVES_TEST_FOLDER").unwrap()).join("seen");
    let mut buffer = vec![0_u8; sent.max(expected)];
    if network.rank() == 0 {
        // SAFETY: rank 1 is done with the message before the buffer is dropped, and does not ask for it
        // again.
        unsafe { network.post_send(1, 5, buffer.as_ptr(), sent).unwrap() };
        // The sender may learn of it, depending on the provider.
        while !seen.exists() {
            let _ = network.make_progress();
        }
        return;
    }
    // Messages of another length have other tags, but for chance.
    let tag = with_length(with_length(5, sent), expected);
    // SAFETY: as above.
    let request = unsafe { network.post_receive(0, tag, buffer.as_mut_ptr(), expected).unwrap() };
    let error = wait(network, &[request]).unwrap_err();
    let Error::MessageLength { rank, peer, expected: wanted, received, .. } = &error else {
        panic!("another error: {error}");
    };
    assert_eq!((*rank, *peer, *wanted), (1, 0, expected));
    // A provider may report only that more arrived than fits.
    assert!(*received == Some(sent) || (sent > expected && received.is_none()), "{error}");
    fs::write(seen, "").unwrap();
}

/// Rank 1 is killed while rank 0 waits for it.
pub(super) fn killed(network: &mut Network) {
    // First a message both ways, for a connection to break.
    let mut byte = [0_u8; 1];
    let peer = 1 - network.rank();
    // SAFETY: the requests are waited for before `byte` ends.
    let requests = unsafe {
        [
            network.post_receive(peer, 1, byte.as_mut_ptr(), 1).unwrap(),
            network.post_send(peer, 1, [7_u8].as_ptr(), 1).unwrap(),
        ]
    };
    wait(network, &requests).unwrap();
    // A message of a dead rank may be refused: rank 0 has its own before rank 1 dies.
    network.world.barrier().unwrap();
    if network.rank() == 1 {
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut buffer = vec![0_u8; 1 << 20];
    // SAFETY: the network is closed by the caller's end, and nothing happens afterwards.
    let error = unsafe {
        let receive = network.post_receive(1, 2, buffer.as_mut_ptr(), 1 << 20);
        receive.and_then(|receive| wait(network, &[receive])).unwrap_err()
    };
    assert!(matches!(&error, Error::World(world::Error::RankFailed { rank: 1, .. })), "{error}");
    std::mem::forget(buffer);
}

/// An endpoint is closed with operations in flight, as after an error.
pub(super) fn closed_in_flight(network: &mut Network) {
    let peer = 1 - network.rank();
    let mut buffers = vec![vec![0_u8; 1 << 20]; 8];
    for (tag, buffer) in buffers.iter_mut().enumerate() {
        // SAFETY: the caller closes the network next; the buffers are given up.
        unsafe {
            if tag % 2 == network.rank() {
                network.post_send(peer, tag as u64, buffer.as_ptr(), 1 << 20).unwrap();
            } else if tag > 3 {
                network.post_receive(peer, tag as u64, buffer.as_mut_ptr(), 1 << 20).unwrap();
            }
        }
    }
    network.make_progress().unwrap();
    assert!(network.endpoints.iter().any(|endpoint| endpoint.in_flight() > 0));
    // A read of the other's memory during the end of its process is another scenario.
    network.world.barrier().unwrap();
    std::mem::forget(buffers);
}

/// Operations in flight when the two ranks of a process leave: messages of each kind, with unpolled receives,
/// or polled without receives. Returns the buffers of the receives.
pub(super) fn left_in_flight(network: &mut Network, asked_for: bool) -> Vec<Vec<u8>> {
    const LENGTHS: [usize; 3] = [8, 2048, 1 << 20];
    // First messages both ways, to make the ranks known to each other.
    exchange(network);
    let peer = 1 - network.rank();
    let mut buffers: Vec<_> = LENGTHS.into_iter().map(|length| vec![0_u8; length]).collect();
    for (tag, buffer) in (100..).zip(&mut buffers) {
        let length = buffer.len();
        // SAFETY: the caller keeps the buffers of the receives; the buffers of the sends are given up.
        unsafe {
            if asked_for {
                network.post_receive(peer, tag, buffer.as_mut_ptr(), length).unwrap();
            }
            network.post_send(peer, tag, vec![1_u8; length].leak().as_ptr(), length).unwrap();
        }
    }
    network.world.barrier().unwrap();
    for _ in 0..if asked_for { 0 } else { 100 } {
        network.make_progress().unwrap();
    }
    network.world.barrier().unwrap();
    buffers
}

pub(super) fn scenario(name: &str, network: &mut Network) {
    match name {
        "exchange" => exchange(network),
        "out of order" => out_of_order(network, false),
        "unexpected" => {
            network.enable_rendezvous();
            out_of_order(network, true);
        }
        "too short" => wrong_length(network, 40, 100),
        "too short and long" => wrong_length(network, 40_000, 1 << 20),
        "long for short" => {
            network.enable_rendezvous();
            wrong_length(network, 100_000, 40);
        }
        "too long" => wrong_length(network, 100, 40),
        "killed" => killed(network),
        "closed in flight" => closed_in_flight(network),
        other => panic!("no scenario {other}"),
    }
}
