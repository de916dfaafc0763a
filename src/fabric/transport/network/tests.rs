//! Ranks as threads and as processes (this test binary started again), over every provider of the machine's
//! libfabric and of a newer one.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::super::endpoint::with_length;
use super::*;
use crate::wheels;
use crate::world::World;

const GIVE_UP: Duration = Duration::from_secs(20);
const SIZES: [usize; 11] = [0, 1, 3, 128, 129, 4096, 4097, 65_536, 1 << 20, (1 << 20) + 1, 16 << 20];

/// Ranks that meet in a folder: every message is a file.
struct FolderWorld {
    folder: PathBuf,
    rank: usize,
    size: usize,
    step: AtomicUsize,
}

impl FolderWorld {
    fn write(&self, name: &str, data: &[u8]) {
        let draft = self.folder.join(format!("draft-{}", self.rank));
        fs::write(&draft, data).unwrap();
        fs::rename(draft, self.folder.join(name)).unwrap();
    }

    fn handle(folder: &Path, rank: usize, size: usize) -> world::Handle {
        let world = Self { folder: folder.to_owned(), rank, size, step: AtomicUsize::new(0) };
        world.write(&format!("pid-{rank}"), std::process::id().to_string().as_bytes());
        let world: world::Handle = Arc::new(world);
        world.barrier().unwrap();
        world
    }
}

impl World for FolderWorld {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    fn local_rank(&self) -> usize {
        self.rank
    }
    fn local_size(&self) -> usize {
        self.size
    }
    fn describe(&self) -> String {
        format!("folder {}", self.folder.display())
    }
    fn barrier(&self) -> Result<(), world::Error> {
        self.all_gather(&[]).map(|_| ())
    }
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        let step = self.step.fetch_add(1, Ordering::Relaxed);
        self.write(&format!("{step}-{}", self.rank), mine);
        let start = Instant::now();
        let read = |rank: usize| loop {
            if let Ok(data) = fs::read(self.folder.join(format!("{step}-{rank}"))) {
                return data;
            }
            assert!(start.elapsed() < GIVE_UP, "rank {rank} does not come");
            thread::sleep(Duration::from_micros(200));
        };
        Ok((0..self.size).map(read).collect())
    }
    fn check(&self) -> Result<(), world::Error> {
        for rank in 0..self.size {
            let pid = fs::read_to_string(self.folder.join(format!("pid-{rank}"))).unwrap();
            let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if status.is_empty() || status.contains(") Z ") {
                return Err(world::Error::RankFailed { rank, host: "here".into(), reason: "died".into() });
            }
        }
        Ok(())
    }
    fn fail(&self, reason: &str) {
        eprintln!("rank {} failed: {reason}", self.rank);
    }
    fn abort(&self, code: i32, message: &str) -> ! {
        eprintln!("{message}");
        std::process::exit(code)
    }
}

fn new_folder() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("collectives-test-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn wait(network: &mut Network, requests: &[Request]) -> Result<(), Error> {
    let start = Instant::now();
    let mut pending = requests.to_vec();
    loop {
        pending.retain(|&request| !network.is_done(request));
        if pending.is_empty() {
            return Ok(());
        }
        network.progress()?;
        assert!(start.elapsed() < GIVE_UP, "{} requests never complete", pending.len());
    }
}

fn pattern(from: usize, to: usize, length: usize, salt: usize) -> Vec<u8> {
    let mut state = (from * 31 + to * 17 + salt * 101 + length) as u64 | 1;
    let mut data = vec![0; length];
    for chunk in data.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&state.to_be_bytes()[..chunk.len()]);
    }
    data
}

/// Every rank sends to every other at once, messages of all sizes.
fn exchange(network: &mut Network) {
    let (rank, size) = (network.rank(), network.size());
    for (step, length) in SIZES.into_iter().enumerate() {
        let peers: Vec<usize> = (0..size).filter(|&peer| peer != rank).collect();
        let outgoing: Vec<Vec<u8>> = peers.iter().map(|&peer| pattern(rank, peer, length, 0)).collect();
        let mut incoming: Vec<Vec<u8>> = peers.iter().map(|_| vec![0; length]).collect();
        let mut requests = Vec::new();
        for (&peer, buffer) in peers.iter().zip(&mut incoming) {
            // SAFETY: the buffers live until all requests are complete, and a failure ends the process or test.
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
}

/// Many messages in flight from rank 0 to rank 1, received in another order than they were sent; with `unexpected`,
/// half of them are asked for only when the other half has arrived.
fn out_of_order(network: &mut Network, unexpected: bool) {
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
                // SAFETY: the messages outlive the requests, which are waited for below.
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
                    // SAFETY: the buffers outlive the requests, which are waited for below.
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
fn wrong_length(network: &mut Network, sent: usize, expected: usize) {
    let seen = PathBuf::from(env::var("COLLECTIVES_TEST_FOLDER").unwrap()).join("seen");
    let mut buffer = vec![0_u8; sent.max(expected)];
    if network.rank() == 0 {
        // SAFETY: rank 1 is done with the message before the buffer is dropped, and does not ask for it again.
        unsafe { network.post_send(1, 5, buffer.as_ptr(), sent).unwrap() };
        // Whether the sender learns of it depends on the provider.
        while !seen.exists() {
            let _ = network.progress();
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
    // A provider may say only that more came than fits.
    assert!(*received == Some(sent) || (sent > expected && received.is_none()), "{error}");
    fs::write(seen, "").unwrap();
}

/// Rank 1 is killed while rank 0 waits for it.
fn killed(network: &mut Network) {
    // First a message both ways, so that there is a connection to break.
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
    // A message of a rank that has died may be refused: rank 0 has its own before rank 1 dies.
    network.world.barrier().unwrap();
    if network.rank() == 1 {
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut buffer = vec![0_u8; 1 << 20];
    // SAFETY: the network is closed by the caller's end, after which nothing happens.
    let error = unsafe {
        let receive = network.post_receive(1, 2, buffer.as_mut_ptr(), 1 << 20);
        receive.and_then(|receive| wait(network, &[receive])).unwrap_err()
    };
    assert!(matches!(&error, Error::World(world::Error::RankFailed { rank: 1, .. })), "{error}");
    std::mem::forget(buffer);
}

/// An endpoint is closed with operations in flight, as after an error.
fn closed_in_flight(network: &mut Network) {
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
    network.progress().unwrap();
    assert!(network.endpoints.iter().any(|endpoint| endpoint.in_flight() > 0));
    // What one reads of the other's memory while that one's process ends is another scenario.
    network.world.barrier().unwrap();
    std::mem::forget(buffers);
}

/// What is posted when the two ranks of a process leave: messages of each way in which they go, and receives for them, but
/// no rank has looked for what came; or no receives, and they have. Also the buffers of the receives.
fn left_in_flight(network: &mut Network, asked_for: bool) -> Vec<Vec<u8>> {
    const LENGTHS: [usize; 3] = [8, 2048, 1 << 20];
    // First messages both ways, so that the ranks know each other.
    exchange(network);
    let peer = 1 - network.rank();
    let mut buffers: Vec<_> = LENGTHS.into_iter().map(|length| vec![0_u8; length]).collect();
    for (tag, buffer) in (100..).zip(&mut buffers) {
        let length = buffer.len();
        // SAFETY: the caller keeps the buffers of the receives; those of the sends are given up.
        unsafe {
            if asked_for {
                network.post_receive(peer, tag, buffer.as_mut_ptr(), length).unwrap();
            }
            network.post_send(peer, tag, vec![1_u8; length].leak().as_ptr(), length).unwrap();
        }
    }
    network.world.barrier().unwrap();
    for _ in 0..if asked_for { 0 } else { 100 } {
        network.progress().unwrap();
    }
    network.world.barrier().unwrap();
    buffers
}

fn scenario(name: &str, network: &mut Network) {
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

fn in_threads(provider: Option<&str>, ranks: usize, name: &str) {
    let folder = new_folder();
    thread::scope(|scope| {
        for rank in 0..ranks {
            let folder = &folder;
            scope.spawn(move || {
                let world = FolderWorld::handle(folder, rank, ranks);
                let mut network = Network::open(&world, provider, None).unwrap();
                scenario(name, &mut network);
                world.barrier().unwrap();
            });
        }
    });
    fs::remove_dir_all(folder).unwrap();
}

fn leave_with_operations_in_flight(asked_for: bool) {
    let folder = new_folder();
    thread::scope(|scope| {
        let leave = |rank: usize| {
            let world = FolderWorld::handle(&folder, rank, 2);
            let mut network = Network::open(&world, Some("shm"), None).unwrap();
            let buffers = left_in_flight(&mut network, asked_for);
            drop(network);
            // Now both have left, and are closed.
            world.barrier().unwrap();
            buffers
        };
        let ranks = [0, 1].map(|rank| scope.spawn(move || leave(rank)));
        for rank in ranks {
            for buffer in rank.join().unwrap() {
                assert!(buffer.iter().all(|&byte| byte == 0), "{} bytes came late", buffer.len());
            }
        }
    });
    assert_eq!(own_files_in_dev_shm(std::process::id()), Vec::<String>::new());
    fs::remove_dir_all(folder).unwrap();
}

/// Started again by the test below.
#[test]
#[ignore = "started by another test"]
fn ranks_of_a_process_leave_with_operations_in_flight() {
    // SAFETY: ends this process when it hangs.
    unsafe { libc::alarm(90) };
    leave_with_operations_in_flight(true);
    leave_with_operations_in_flight(false);
    println!("all have left");
}

#[test]
fn nothing_touches_the_buffers_of_ranks_that_have_left() {
    for library in wheels::each_libfabric() {
        for environment in [COPIES, CMA] {
            let mut command = Command::new(env::current_exe().unwrap());
            let name =
                "fabric::transport::network::tests::ranks_of_a_process_leave_with_operations_in_flight";
            command.args([name, "--exact", "--ignored", "--nocapture"]).envs(environment.iter().copied());
            if let Some(library) = &library {
                command.env("FABRIC_LIBRARY", library);
            }
            let output = command.output().unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let report = format!("{library:?} {environment:?}: {}\n{out}{err}", output.status);
            assert!(output.status.success() && out.contains("all have left"), "{report}");
        }
    }
}

#[test]
fn threads_exchange_messages_of_all_sizes() {
    for (provider, ranks) in [(Some("shm"), 2), (Some("tcp"), 2), (None, 3), (Some("tcp"), 3)] {
        in_threads(provider, ranks, "exchange");
    }
    assert_eq!(own_files_in_dev_shm(std::process::id()), Vec::<String>::new());
}

#[test]
fn a_provider_that_is_not_there_is_named_with_those_that_are() {
    let folder = new_folder();
    let world = FolderWorld::handle(&folder, 0, 1);
    let error = Network::open(&world, Some("nonsense"), None).err().unwrap().to_string();
    assert!(error.starts_with("provider 'nonsense': libfabric "), "{error}");
    assert!(error.contains("available: ") && error.contains("shm"), "{error}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_list_of_providers_has_shm_and_tcp() {
    let providers = providers_by_name();
    let tcp = provider::name_in(Fabric::load().unwrap(), "tcp");
    assert!(providers.contains(&"shm".to_owned()) && providers.contains(&tcp), "{providers:?}");
}

fn providers_by_name() -> Vec<String> {
    provider::providers().unwrap().into_iter().map(|provider| provider.name).collect()
}

/// The files of a process's endpoints that are still there.
fn own_files_in_dev_shm(pid: u32) -> Vec<String> {
    let own = format!("-{pid}-");
    fs::read_dir("/dev/shm")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("collectives-") && name.contains(&own))
        .collect()
}

/// Started again by the tests below, as one rank.
#[test]
#[ignore = "started by the other tests"]
fn rank_in_a_process() {
    let variable = |name: &str| env::var(format!("COLLECTIVES_TEST_{name}")).unwrap();
    let (rank, size) = (variable("RANK").parse().unwrap(), variable("SIZE").parse().unwrap());
    // SAFETY: ends this process when it hangs.
    unsafe { libc::alarm(90) };
    let world = FolderWorld::handle(Path::new(&variable("FOLDER")), rank, size);
    let mut network = Network::open(&world, Some(&variable("PROVIDER")), None).unwrap();
    println!("{:?}", network.summary());
    scenario(&variable("SCENARIO"), &mut network);
    drop(network);
    println!("rank {rank} is done");
}

fn in_processes(provider: &str, ranks: usize, name: &str, environment: &[(&str, &str)]) {
    for library in wheels::each_libfabric() {
        let folder = new_folder();
        let start = |rank: usize| -> Child {
            let mut command = Command::new(env::current_exe().unwrap());
            command
                .args([
                    "fabric::transport::network::tests::rank_in_a_process",
                    "--exact",
                    "--ignored",
                    "--nocapture",
                ])
                .env("COLLECTIVES_TEST_FOLDER", &folder)
                .env("COLLECTIVES_TEST_RANK", rank.to_string())
                .env("COLLECTIVES_TEST_SIZE", ranks.to_string())
                .env("COLLECTIVES_TEST_PROVIDER", provider)
                .env("COLLECTIVES_TEST_SCENARIO", name)
                .envs(environment.iter().copied())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if let Some(library) = &library {
                command.env("FABRIC_LIBRARY", library);
            }
            command.spawn().unwrap()
        };
        let children: Vec<Child> = (0..ranks).map(start).collect();
        let pids: Vec<u32> = children.iter().map(Child::id).collect();
        let outputs: Vec<_> = children
            .into_iter()
            .map(|child| thread::spawn(move || child.wait_with_output().unwrap()))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|output| output.join().unwrap())
            .collect();
        let mut report = format!("{name} over {provider} with {library:?} {environment:?}\n");
        for output in &outputs {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            writeln!(report, "{}\n{out}{err}", output.status).unwrap();
        }
        for (rank, output) in outputs.iter().enumerate() {
            let survives = name != "killed" || rank == 0;
            assert_eq!(output.status.success(), survives, "{report}");
            let done = String::from_utf8_lossy(&output.stdout).contains(&format!("rank {rank} is done"));
            assert_eq!(done, survives, "{report}");
        }
        if name == "killed" {
            shm::remove_leftovers();
        }
        for pid in pids {
            assert_eq!(own_files_in_dev_shm(pid), Vec::<String>::new(), "{report}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}

const CMA: &[(&str, &str)] = &[("FI_SHM_DISABLE_CMA", "0")];
const COPIES: &[(&str, &str)] = &[("FI_SHM_DISABLE_CMA", "1")];

#[test]
fn processes_exchange_messages_of_all_sizes() {
    in_processes("shm", 2, "exchange", COPIES);
    in_processes("shm", 2, "exchange", CMA);
    in_processes("shm", 4, "exchange", COPIES);
    in_processes("tcp", 2, "exchange", &[]);
    in_processes("tcp", 3, "exchange", &[]);
}

#[test]
fn messages_are_received_in_any_order() {
    in_processes("shm", 2, "unexpected", COPIES);
    in_processes("shm", 2, "unexpected", CMA);
    // Over TCP few messages may come before they are asked for: they hold up the others.
    in_processes("tcp", 2, "out of order", &[]);
}

#[test]
fn a_wrong_length_is_reported_with_the_sender() {
    for provider in ["shm", "tcp"] {
        for name in ["too short", "too short and long", "too long"] {
            in_processes(provider, 2, name, COPIES);
        }
    }
    in_processes("shm", 2, "too long", CMA);
    in_processes("shm", 2, "long for short", COPIES);
}

#[test]
fn a_killed_rank_ends_the_wait_of_the_others() {
    in_processes("shm", 2, "killed", COPIES);
    in_processes("tcp", 2, "killed", &[]);
}

#[test]
fn endpoints_close_with_operations_in_flight() {
    in_processes("shm", 2, "closed in flight", COPIES);
    in_processes("shm", 2, "closed in flight", CMA);
    in_processes("tcp", 2, "closed in flight", &[]);
}

/// A world in which every rank says what this one says, of as many as are wanted.
struct Crowd(usize);

impl World for Crowd {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        self.0
    }
    fn local_rank(&self) -> usize {
        0
    }
    fn local_size(&self) -> usize {
        self.0
    }
    fn describe(&self) -> String {
        format!("{} ranks", self.0)
    }
    fn barrier(&self) -> Result<(), world::Error> {
        Ok(())
    }
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        Ok(vec![mine.to_vec(); self.0])
    }
    fn check(&self) -> Result<(), world::Error> {
        Ok(())
    }
    fn fail(&self, _reason: &str) {}
    fn abort(&self, code: i32, _message: &str) -> ! {
        std::process::exit(code)
    }
}

#[test]
fn more_ranks_than_shm_takes_use_tcp() {
    let library = Fabric::load().unwrap();
    let plan = |ranks, wanted| {
        ProviderChoice::agree(library, &(Arc::new(Crowd(ranks)) as world::Handle), wanted, None)
    };
    assert_eq!(plan(256, None).unwrap().intra_host, "shm");
    let tcp = provider::name_in(library, "tcp");
    let oversubscribed = plan(257, None).unwrap();
    assert_eq!((oversubscribed.intra_host, oversubscribed.inter_host), (tcp.clone(), tcp));
    assert_eq!(plan(256, Some("shm")).unwrap().intra_host, "shm");
    assert_eq!(
        plan(257, Some("shm")).err().unwrap().to_string(),
        "provider 'shm': serves at most 256 ranks, and this job has 257; leave the choice open, or choose tcp"
    );
}

#[test]
fn processors_of_ranks_that_are_bound_count_together() {
    let count_processors = |masks: &[&[u8]]| super::count_processors(masks.iter().copied());
    assert_eq!(count_processors(&[&[1], &[2]]), 2);
    assert_eq!(count_processors(&[&[2, 0], &[2]]), 1);
    assert_eq!(count_processors(&[&[0x0f], &[0xf0, 0x81]]), 10);
    assert_eq!(count_processors(&[&[], &[]]), 0);
    let own = thread_affinity();
    assert!((1..=count_processors(&[&own])).contains(&available_processors([own.as_slice()].into_iter())));
}
