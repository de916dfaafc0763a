//! A network of threads for tests: messages from different peers arrive late and in any order, and every
//! misuse of a buffer in flight is found.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::num::NonZero;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::fabric::Error;
use crate::fabric::calls::CallRecord;
use crate::fabric::hosts::Hosts;
use crate::fabric::transport::{MessageRequest, Transport};
use crate::world::{Awaited, Reason};

const INJECT_SIZE: usize = 256;
const GIVE_UP: Duration = Duration::from_secs(30);
/// Content of a posted receive buffer, to detect writes.
const FILLING: u8 = 0xa5;

/// All queues, by `from * size + to`.
struct SimulatedNetwork {
    size: usize,
    hosts: Hosts,
    delivery: Delivery,
    pairs: Vec<Mutex<PairQueue>>,
    open: AtomicUsize,
    /// Ranks with a reported failure, and their reasons.
    failures: Mutex<Vec<(usize, Reason)>>,
    between: InterHostCounters,
}

/// Counters of the traffic between hosts.
#[derive(Default)]
struct InterHostCounters {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    hops: AtomicUsize,
}

/// Traffic between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// Length of the longest chain of dependent messages.
    pub(crate) hops: usize,
}

#[derive(Default)]
struct PairQueue {
    queue: VecDeque<QueuedMessage>,
    /// Number of the queue's arrived messages.
    arrived: usize,
}

struct QueuedMessage {
    tag: u64,
    /// Length of the chain of messages between hosts up to this one.
    hops: usize,
    payload: Payload,
}

enum Payload {
    Copied(Vec<u8>),
    /// Read from the sender's memory when it is received.
    InPlace {
        address: usize,
        len: usize,
        hash: u64,
        done: Arc<AtomicBool>,
    },
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Self::Copied(data) => data.len(),
            Self::InPlace { len, .. } => *len,
        }
    }
}

enum RequestState {
    Free,
    Done,
    Sending(Arc<AtomicBool>),
    Receiving,
}

struct Receive {
    request: usize,
    peer: usize,
    tag: u64,
    data: *mut u8,
    len: usize,
}

/// Fault to inject.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Break {
    Never,
    Error { polls: u32 },
    Panic { polls: u32 },
}

/// One rank's end of the simulated network.
pub(crate) struct Simulated {
    rank: usize,
    network: Arc<SimulatedNetwork>,
    requests: Vec<RequestState>,
    receives: Vec<Receive>,
    random: u64,
    /// Length of the longest chain of messages between hosts received by this rank.
    hops: usize,
    polls: u32,
    pub(crate) breaks: Break,
    /// Timeout of a wait for messages.
    pub(crate) patience: Duration,
    last: Instant,
    pub(crate) posted: Arc<AtomicUsize>,
}

// SAFETY: the pointers of posted receives are used by the transport's thread.
unsafe impl Send for Simulated {}

/// Handling of unexpected messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It waits.
    Any,
    /// It blocks all later messages between the same ranks.
    InOrder,
}

/// The ends of a new network, each on a host of its own. `seed` determines the order of delivery.
pub(crate) fn network(size: usize, seed: u64) -> Vec<Simulated> {
    network_of(&(0..size).collect::<Vec<_>>(), Delivery::Any, seed)
}

/// [`network`] with the number of each rank's host.
pub(crate) fn network_of(hosts: &[usize], delivery: Delivery, seed: u64) -> Vec<Simulated> {
    let size = hosts.len();
    let pairs = (0..size * size).map(|_| Mutex::default()).collect();
    let network = Arc::new(SimulatedNetwork {
        size,
        hosts: Hosts::new(hosts),
        delivery,
        pairs,
        open: AtomicUsize::new(size),
        failures: Mutex::default(),
        between: InterHostCounters::default(),
    });
    let end = |rank| Simulated {
        rank,
        network: Arc::clone(&network),
        requests: Vec::new(),
        receives: Vec::new(),
        random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(rank as u64) | 1,
        hops: 0,
        polls: 0,
        breaks: Break::Never,
        patience: GIVE_UP,
        last: Instant::now(),
        posted: Arc::default(),
    };
    (0..size).map(end).collect()
}

fn hash(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

fn failure(problem: String) -> Error {
    Error::Length { operation: "simulated network", problem }
}

impl Simulated {
    /// Returns a function for the number of open ends of the network.
    pub(crate) fn watch(&self) -> impl Fn() -> usize + Send + 'static {
        let network = Arc::clone(&self.network);
        move || network.open.load(Ordering::SeqCst)
    }

    /// Returns a function for the ranks with a reported failure, and their reasons.
    pub(crate) fn failures(&self) -> impl Fn() -> Vec<(usize, Reason)> + Send + 'static {
        let network = Arc::clone(&self.network);
        move || network.failures.lock().unwrap().clone()
    }

    /// Returns a function for the traffic between hosts.
    pub(crate) fn traffic(&self) -> impl Fn() -> Traffic + Send + 'static {
        let network = Arc::clone(&self.network);
        move || Traffic {
            messages: network.between.messages.load(Ordering::SeqCst),
            bytes: network.between.bytes.load(Ordering::SeqCst),
            hops: network.between.hops.load(Ordering::SeqCst),
        }
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn request(&mut self, state: RequestState) -> MessageRequest {
        let free = self.requests.iter().position(|state| matches!(state, RequestState::Free));
        let index = free.unwrap_or_else(|| {
            self.requests.push(RequestState::Free);
            self.requests.len() - 1
        });
        self.requests[index] = state;
        MessageRequest(u32::try_from(index).unwrap())
    }

    fn pair(&self, from: usize, to: usize) -> &Mutex<PairQueue> {
        &self.network.pairs[from * self.network.size + to]
    }

    /// Lets a message from `peer` arrive, and completes the receives for it or an earlier one.
    fn deliver(&mut self, peer: usize) -> Result<(), Error> {
        let network = Arc::clone(&self.network);
        let mut pair = network.pairs[peer * network.size + self.rank].lock().unwrap();
        pair.arrived = (pair.arrived + 1).min(pair.queue.len());
        let mut index = 0;
        while index < self.receives.len() {
            let receive = &self.receives[index];
            let arrived = match network.delivery {
                Delivery::Any => pair.arrived,
                Delivery::InOrder => pair.arrived.min(1),
            };
            let matching = pair.queue.iter().take(arrived).position(|message| message.tag == receive.tag);
            let Some(position) = matching.filter(|_| receive.peer == peer) else {
                index += 1;
                continue;
            };
            let message = pair.queue.remove(position).unwrap();
            pair.arrived -= 1;
            if message.payload.len() != receive.len {
                let sent = message.payload.len();
                return Err(failure(format!("{sent} bytes sent to a receive of {}", receive.len)));
            }
            // SAFETY: the poster keeps the memory valid and untouched until this is done.
            let data = unsafe { slice::from_raw_parts_mut(receive.data, receive.len) };
            assert!(data.iter().all(|&byte| byte == FILLING), "a posted receive buffer was changed");
            match message.payload {
                Payload::Copied(payload) => data.copy_from_slice(&payload),
                Payload::InPlace { address, len, hash: before, done } => {
                    // SAFETY: the sender keeps the memory valid and unchanged until it is done, and removes
                    // the message when it closes before; the message's lock is held here.
                    let payload = unsafe { slice::from_raw_parts(address as *const u8, len) };
                    assert_eq!(hash(payload), before, "a posted send buffer was changed");
                    data.copy_from_slice(payload);
                    done.store(true, Ordering::SeqCst);
                }
            }
            self.hops = self.hops.max(message.hops);
            self.requests[receive.request] = RequestState::Done;
            self.receives.remove(index);
            index = 0;
            self.last = Instant::now();
        }
        Ok(())
    }
}

impl Transport for Simulated {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.network.size
    }

    fn rank_hosts(&self) -> Hosts {
        self.network.hosts.clone()
    }

    unsafe fn post_receive(
        &mut self,
        peer: usize,
        tag: u64,
        data: *mut u8,
        len: usize,
    ) -> Result<MessageRequest, Error> {
        assert!(peer != self.rank && peer < self.network.size && len > 0);
        self.posted.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the memory is valid for `len` bytes, as the caller promises.
        unsafe { data.write_bytes(FILLING, len) };
        let request = self.request(RequestState::Receiving);
        self.receives.push(Receive { request: request.0 as usize, peer, tag, data, len });
        self.last = Instant::now();
        Ok(request)
    }

    unsafe fn post_send(
        &mut self,
        peer: usize,
        tag: u64,
        data: *const u8,
        len: usize,
    ) -> Result<MessageRequest, Error> {
        assert!(peer != self.rank && peer < self.network.size && len > 0);
        self.posted.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the memory is valid for `len` bytes, as the caller promises.
        let bytes = unsafe { slice::from_raw_parts(data, len) };
        let (payload, state) = if len <= INJECT_SIZE {
            (Payload::Copied(bytes.to_vec()), RequestState::Done)
        } else {
            let done = Arc::new(AtomicBool::new(false));
            let payload =
                Payload::InPlace { address: data as usize, len, hash: hash(bytes), done: Arc::clone(&done) };
            (payload, RequestState::Sending(done))
        };
        let mut hops = self.hops;
        if self.network.hosts.host_and_index(self.rank).0 != self.network.hosts.host_and_index(peer).0 {
            let between = &self.network.between;
            hops += 1;
            between.messages.fetch_add(1, Ordering::SeqCst);
            between.bytes.fetch_add(len, Ordering::SeqCst);
            between.hops.fetch_max(hops, Ordering::SeqCst);
        }
        self.pair(self.rank, peer).lock().unwrap().queue.push_back(QueuedMessage { tag, hops, payload });
        self.last = Instant::now();
        Ok(self.request(state))
    }

    fn record_call(&mut self, _entry: CallRecord) {}

    fn compare_calls(&mut self) {}

    fn set_timeout(&mut self, _limit: Option<Duration>) {}

    fn check_ranks(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn report_failure(&self, reason: Reason) {
        self.network.failures.lock().unwrap().push((self.rank, reason));
    }

    fn time_out(&mut self, operation: &str, limit: Duration, _awaited: Vec<Awaited>) -> Error {
        Error::TimedOut { operation: operation.to_owned(), limit, late: Vec::new() }
    }

    fn make_progress(&mut self) -> Result<(), Error> {
        self.polls += 1;
        match self.breaks {
            Break::Error { polls } if self.polls > polls => {
                return Err(failure("broken on purpose".to_owned()));
            }
            Break::Panic { polls } if self.polls > polls => panic!("broken on purpose"),
            _ => {}
        }
        if self.last.elapsed() > self.patience {
            return Err(failure("nothing arrived".to_owned()));
        }
        let random = self.random();
        if random.is_multiple_of(4) {
            std::thread::yield_now();
            return Ok(());
        }
        // A message from a peer with a posted receive, perhaps another message than the awaited one.
        let Some(peers) = NonZero::new(self.receives.len()) else { return Ok(()) };
        self.deliver(self.receives[(random >> 8) as usize % peers].peer)
    }

    fn wait_for_completion(&mut self) -> Result<(), Error> {
        self.make_progress()
    }

    fn is_done(&mut self, request: MessageRequest) -> bool {
        let state = &mut self.requests[request.0 as usize];
        let done = match state {
            RequestState::Free => panic!("a request was asked after it was done"),
            RequestState::Done => true,
            RequestState::Sending(done) => done.load(Ordering::SeqCst),
            RequestState::Receiving => false,
        };
        if done {
            *state = RequestState::Free;
        }
        done
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        for peer in 0..self.network.size {
            let mut pair = self.pair(self.rank, peer).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let PairQueue { queue, arrived } = &mut *pair;
            queue.retain(|message| matches!(message.payload, Payload::Copied(_)));
            *arrived = (*arrived).min(queue.len());
        }
        self.network.open.fetch_sub(1, Ordering::SeqCst);
    }
}
