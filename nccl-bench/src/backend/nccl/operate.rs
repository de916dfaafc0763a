//! One operation as calls of the safe layer: at once, in a group, or in a graph.

use std::ops::Range;

use collectives::Element;
use collectives::nccl::{
    self, Call, Capture, Captured, Communicator, DeviceBuffer as _, Group, Launch, RawBuffer, ScaledSum,
};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::backend::Work;
use crate::collective::Collective;

/// An element that a sum can be scaled by.
pub(super) trait Scalar: Element {
    /// The element nearest to a small whole number.
    fn of(value: f64) -> Self;
}

macro_rules! scalar {
    ($($type:ty: $of:expr;)*) => {$(
        impl Scalar for $type {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 1 and 2
            fn of(value: f64) -> Self {
                $of(value)
            }
        }
    )*};
}

scalar! {
    i8: |value| value as Self;
    u8: |value| value as Self;
    i32: |value| value as Self;
    u32: |value| value as Self;
    i64: |value| value as Self;
    u64: |value| value as Self;
    f32: |value| value as Self;
    f64: |value| value;
    f16: f16::from_f64;
    bf16: bf16::from_f64;
    F8E4M3: F8E4M3::from_f64;
    F8E5M2: F8E5M2::from_f64;
}

/// What one operation works on. In place the two buffers overlap.
pub(super) struct Buffers<T> {
    pub(super) send: RawBuffer<T>,
    pub(super) receive: RawBuffer<T>,
    /// Exchanges with other ranks, one after the other, where the operation is made of these.
    pub(super) exchanges: Vec<Exchange<T>>,
}

/// What operations that differ in their buffers alone have in common.
pub(super) struct Common<'c, T> {
    /// The operator that scales.
    pub(super) scaled: Option<ScaledSum<'c, T>>,
    /// The part for each rank, where ranks get different ones.
    pub(super) sent: Vec<Range<usize>>,
    /// The part of each rank.
    pub(super) received: Vec<Range<usize>>,
}

/// A send and a receive at the same time.
pub(super) struct Exchange<T> {
    pub(super) send: RawBuffer<T>,
    pub(super) to: usize,
    pub(super) receive: RawBuffer<T>,
    pub(super) from: usize,
}

/// How an operation reaches NCCL.
pub(super) enum Way<'g, 'env> {
    Now,
    Group(&'g Group<'env>),
    Capture(&'g Capture<'env>),
    /// While the communicator's stream is being captured with other kernels: into a graph that ends before the communicator
    /// and the memory of the buffers.
    Captured,
}

/// Queues one operation.
pub(super) fn queue<'env, 'c: 'env, T: Scalar>(
    way: &Way<'_, 'env>,
    communicator: &'env Communicator,
    work: &Work,
    common: &'env Common<'c, T>,
    buffers: &'env mut Buffers<T>,
) -> Result<(), nccl::Error> {
    if matches!(work.collective, Collective::SendRecv | Collective::Hypercube) {
        return buffers.exchanges.iter_mut().try_for_each(|exchange| match way {
            Way::Now => nccl::group(communicator.library(), |group| pair(group.on(communicator), exchange)),
            Way::Group(group) => group.nested(|group| pair(group.on(communicator), exchange)),
            Way::Capture(capture) => capture.group(|capture| pair(capture.on(communicator), exchange)),
            Way::Captured => exchange_captured(communicator, exchange),
        });
    }
    match way {
        Way::Now => single(communicator.call(), work, common, buffers),
        Way::Group(group) => single(group.on(communicator), work, common, buffers),
        Way::Capture(capture) => single(capture.on(communicator), work, common, buffers),
        Way::Captured => single(captured(communicator), work, common, buffers),
    }
}

/// Calls among the other kernels of [`Way::Captured`].
fn captured(communicator: &Communicator) -> Call<'_, Captured> {
    // SAFETY: the graph ends before the communicator and the buffers, by the contract of `Way::Captured`; nothing else uses the
    // buffers while it runs, because all that uses them is on this one stream. `RawBuffer` waits for no events.
    unsafe { communicator.captured() }
}

/// A send and a receive in one call, because a group cannot be captured among other kernels.
fn exchange_captured<T: Element>(
    communicator: &Communicator,
    exchange: &mut Exchange<T>,
) -> Result<(), nccl::Error> {
    let mut sent = vec![0..0; communicator.size()];
    let mut received = sent.clone();
    sent[exchange.to] = 0..exchange.send.len();
    received[exchange.from] = 0..exchange.receive.len();
    captured(communicator).all_to_all_v(&exchange.send, &sent, &mut exchange.receive, &received)
}

fn pair<'env, T: Element, L: Launch<'env>>(
    call: Call<'env, L>,
    exchange: &'env mut Exchange<T>,
) -> Result<(), nccl::Error> {
    call.send(&exchange.send, exchange.to)?;
    call.recv(&mut exchange.receive, exchange.from)
}

fn single<'env, 'c: 'env, T: Scalar, L: Launch<'env>>(
    call: Call<'env, L>,
    work: &Work,
    common: &'env Common<'c, T>,
    buffers: &'env mut Buffers<T>,
) -> Result<(), nccl::Error> {
    let Buffers { send, receive, .. } = buffers;
    let send = &*send;
    let root = work.member.root.unwrap_or(0);
    let own = work.op.and_then(|op| op.built_in()).unwrap_or(collectives::ReduceOp::Sum);
    match (work.collective, &common.scaled) {
        (Collective::AllReduce, None) => call.all_reduce(send, receive, own),
        (Collective::AllReduce, Some(op)) => call.all_reduce(send, receive, op),
        (Collective::Reduce, None) => call.reduce(send, Some(receive), own, root),
        (Collective::Reduce, Some(op)) => call.reduce(send, Some(receive), op, root),
        (Collective::ReduceScatter, None) => call.reduce_scatter(send, receive, own),
        (Collective::ReduceScatter, Some(op)) => call.reduce_scatter(send, receive, op),
        (Collective::AllGather, _) => call.all_gather(send, receive),
        (Collective::Broadcast, _) => call.broadcast(Some(send), receive, root),
        (Collective::AllToAll, _) => call.all_to_all(send, receive),
        (Collective::AllToAllV, _) => call.all_to_all_v(send, &common.sent, receive, &common.received),
        (Collective::Gather, _) => call.gather(send, Some(receive), root),
        (Collective::Scatter, _) => call.scatter(Some(send), receive, root),
        // Exchanges, above.
        (Collective::SendRecv | Collective::Hypercube, _) => Ok(()),
    }
}
