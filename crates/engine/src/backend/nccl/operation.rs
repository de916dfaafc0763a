//! One operation as calls of the safe layer: immediate, prepared, or in a graph.

use collectives::nccl::{
    self, Call, Capture, Collectives as _, Communicator, DeviceBuffer, DeviceBufferMut, Launch, Memory,
    MemoryView, MemoryViewMut, Preparation, Reduction, ScaledSum,
};
use collectives::{Element, ReduceOp};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::backend::RankWork;
use crate::collective::Collective;

/// An element type that a sum can be scaled by.
pub(super) trait Scalar: Element {
    /// Returns the element nearest to a small whole number.
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

pub(super) enum OperationBuffers<S, R> {
    Two(S, R),
    /// The one buffer of an operation in place.
    InPlace(R),
    /// The exchanges of a hypercube, in order.
    Steps(Vec<PeerExchange<R>>),
}

pub(super) type Views<'m, T> = OperationBuffers<MemoryView<'m, T>, MemoryViewMut<'m, T>>;

impl OperationBuffers<Memory, Memory> {
    pub(super) fn buffer_views<T: Element>(&mut self) -> Result<Views<'_, T>, nccl::Error> {
        Ok(match self {
            Self::Two(send, receive) => OperationBuffers::Two(send.slice(..)?, receive.slice_mut(..)?),
            Self::InPlace(buffer) => OperationBuffers::InPlace(buffer.slice_mut(..)?),
            Self::Steps(steps) => OperationBuffers::Steps(
                steps.iter_mut().map(PeerExchange::exchange_views).collect::<Result<_, _>>()?,
            ),
        })
    }
}

/// A send to and a receive from the same peer, at the same time.
pub(super) struct PeerExchange<R> {
    pub(super) send: R,
    pub(super) receive: R,
    pub(super) peer: usize,
}

/// The operator of the operations of a loop, if it is a mulsum, which has to be created.
pub(super) type LoopOp<'c, T> = Option<ScaledSum<'c, T>>;

#[derive(Clone, Copy)]
pub(super) enum LaunchMode<'w> {
    Immediate,
    /// Into a list, which is queued later.
    Prepare(&'w Preparation<'w>),
    Capture(&'w Capture),
    /// In a capture of the communicator's stream together with other kernels. The graph must end before the
    /// communicator and the memory of the buffers.
    Captured,
}

pub(super) fn queue_operation<T: Scalar, S: DeviceBuffer<Element = T>, R: DeviceBufferMut<Element = T>>(
    mode: LaunchMode<'_>,
    communicator: &Communicator,
    work: &RankWork,
    scaled: &LoopOp<'_, T>,
    buffers: &mut OperationBuffers<S, R>,
) -> anyhow::Result<()> {
    match (work.collective, buffers) {
        (Collective::SendRecv, OperationBuffers::Two(send, receive)) => {
            let (to, from) = (work.participant.next_rank(), work.participant.previous_rank());
            queue_exchange(mode, communicator, (send, to), (receive, from))?;
        }
        (Collective::Hypercube, OperationBuffers::Steps(steps)) => {
            for PeerExchange { send, receive, peer } in steps {
                queue_exchange(mode, communicator, (send, *peer), (receive, *peer))?;
            }
        }
        (_, buffers) => match mode {
            LaunchMode::Immediate => queue_single(communicator.call(), work, scaled, buffers)?,
            LaunchMode::Prepare(preparation) => queue_single(preparation.call(), work, scaled, buffers)?,
            LaunchMode::Capture(capture) => queue_single(capture.on(communicator), work, scaled, buffers)?,
            LaunchMode::Captured => queue_single(captured_call(communicator), work, scaled, buffers)?,
        },
    }
    Ok(())
}

/// Calls within a capture of [`LaunchMode::Captured`].
fn captured_call(communicator: &Communicator) -> Call<'_> {
    // SAFETY: the graph ends before the communicator and the buffers, by the contract of
    // `LaunchMode::Captured`; nothing else uses the buffers while it runs, because all that uses them is on
    // this one stream. Views wait for no events.
    unsafe { communicator.captured() }
}

impl PeerExchange<Memory> {
    fn exchange_views<T: Element>(&mut self) -> Result<PeerExchange<MemoryViewMut<'_, T>>, nccl::Error> {
        let Self { send, receive, peer } = self;
        Ok(PeerExchange { send: send.slice_mut(..)?, receive: receive.slice_mut(..)?, peer: *peer })
    }
}

/// Queues a send and a receive at the same time, each with its peer.
fn queue_exchange<T: Element, S: DeviceBuffer<Element = T>, R: DeviceBufferMut<Element = T>>(
    mode: LaunchMode<'_>,
    communicator: &Communicator,
    (send, to): (&S, usize),
    (receive, from): (&mut R, usize),
) -> Result<(), nccl::Error> {
    match mode {
        LaunchMode::Immediate => {
            nccl::group(|group| send_and_receive(group.on(communicator), (send, to), (receive, from)))
        }
        LaunchMode::Prepare(preparation) => {
            preparation.group(|group| send_and_receive(group.call(), (send, to), (receive, from)))
        }
        LaunchMode::Capture(capture) => {
            capture.group(|capture| send_and_receive(capture.on(communicator), (send, to), (receive, from)))
        }
        // As one call, because a group cannot be captured together with other kernels.
        LaunchMode::Captured => {
            let mut sent = vec![0..0; communicator.size()];
            let mut received = sent.clone();
            sent[to] = 0..send.len();
            received[from] = 0..receive.len();
            captured_call(communicator).all_to_all_v(send, &sent, receive, &received)
        }
    }
}

fn send_and_receive<'b, S: DeviceBuffer, R: DeviceBufferMut, L: Launch<'b>>(
    call: Call<'b, L>,
    (send, to): (&'b S, usize),
    (receive, from): (&'b mut R, usize),
) -> Result<(), nccl::Error> {
    call.send(send, to)?;
    call.recv(receive, from)
}

/// Queues a collective that is a single call.
fn queue_single<'env, 'c: 'env, T, S, R, L>(
    call: Call<'env, L>,
    work: &RankWork,
    scaled: &'env LoopOp<'c, T>,
    buffers: &'env mut OperationBuffers<S, R>,
) -> anyhow::Result<()>
where
    T: Scalar,
    S: DeviceBuffer<Element = T>,
    R: DeviceBufferMut<Element = T>,
    L: Launch<'env>,
{
    use OperationBuffers::{InPlace, Two};
    let root = work.participant.root.unwrap_or(0);
    let queued = match (work.collective, buffers) {
        // nccl-tests calls no function of NCCL then, so that the times of both are of the same.
        (Collective::Gather | Collective::Scatter, _) if !work.has_elements() => Ok(()),
        (Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter, buffers) => {
            let own = work.op.and_then(|op| op.built_in()).unwrap_or(ReduceOp::Sum);
            return match scaled {
                None => queue_reduction(call, work, own, buffers),
                Some(op) => queue_reduction(call, work, op, buffers),
            };
        }
        (Collective::AllGather, Two(send, receive)) => call.all_gather(send, receive),
        (Collective::AllGather, InPlace(buffer)) => call.all_gather_in_place(buffer),
        (Collective::Broadcast, Two(send, receive)) => call.broadcast(Some(send), receive, root),
        (Collective::Broadcast, InPlace(buffer)) => call.broadcast_in_place(buffer, root),
        (Collective::Gather, Two(send, receive)) => call.gather(send, Some(receive), root),
        (Collective::Gather, InPlace(buffer)) => call.gather_in_place(buffer, root),
        (Collective::Scatter, Two(send, receive)) => call.scatter(Some(send), receive, root),
        (Collective::Scatter, InPlace(buffer)) => call.scatter_in_place(buffer, root),
        (Collective::AllToAll, Two(send, receive)) => call.all_to_all(send, receive),
        (Collective::AllToAllV, Two(send, receive)) => {
            let (sent, received) = work.traffic_parts();
            call.all_to_all_v(send, sent, receive, received)
        }
        (collective, _) => anyhow::bail!("{collective} has no operation on such buffers"),
    };
    Ok(queued?)
}

/// Queues a collective that reduces.
fn queue_reduction<'env, T, O, S, R, L>(
    call: Call<'env, L>,
    work: &RankWork,
    op: O,
    buffers: &'env mut OperationBuffers<S, R>,
) -> anyhow::Result<()>
where
    T: Element,
    O: Reduction<'env, T>,
    S: DeviceBuffer<Element = T>,
    R: DeviceBufferMut<Element = T>,
    L: Launch<'env>,
{
    use OperationBuffers::{InPlace, Two};
    let root = work.participant.root.unwrap_or(0);
    let queued = match (work.collective, buffers) {
        (Collective::AllReduce, Two(send, receive)) => call.all_reduce(send, receive, op),
        (Collective::AllReduce, InPlace(buffer)) => call.all_reduce_in_place(buffer, op),
        (Collective::Reduce, Two(send, receive)) => call.reduce(send, Some(receive), op, root),
        (Collective::Reduce, InPlace(buffer)) => call.reduce_in_place(buffer, op, root),
        (Collective::ReduceScatter, Two(send, receive)) => call.reduce_scatter(send, receive, op),
        (Collective::ReduceScatter, InPlace(buffer)) => call.reduce_scatter_in_place(buffer, op),
        (collective, _) => anyhow::bail!("{collective} does not reduce such buffers"),
    };
    Ok(queued?)
}
