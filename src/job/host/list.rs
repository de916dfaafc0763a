//! An all_reduce of several buffers as one operation.

use crate::fabric::{Communicator, Error};
use crate::hash::fnv1a_hash;
use crate::{Element, ReduceOp};

/// Lists of up to this many bytes are copied into one buffer. For longer ones, copying takes longer than the
/// operations' latencies.
const FUSED_BYTES: usize = 1 << 20;

/// Number of buffers, number of elements, and a hash of the lengths.
type Layout = [u64; 3];

/// Reduces all buffers. The ranks compare their lengths first: two lists with the same number of elements,
/// cut differently, would mix in one buffer.
pub(super) fn all_reduce<T: Element>(
    communicator: &mut Communicator,
    list: &mut [&mut [T]],
    op: ReduceOp,
) -> Result<(), Error> {
    if let [one] = list {
        return communicator.all_reduce_in_place(one, op);
    }
    let elements: usize = list.iter().map(|buffer| buffer.len()).sum();
    compare_layouts(communicator, list_layout(list))?;
    if elements.saturating_mul(size_of::<T>()) > FUSED_BYTES {
        return list.iter_mut().try_for_each(|buffer| communicator.all_reduce_in_place(buffer, op));
    }
    let mut fused = Vec::with_capacity(elements);
    list.iter().for_each(|buffer| fused.extend_from_slice(buffer));
    communicator.all_reduce_in_place(&mut fused, op)?;
    let mut rest = fused.as_slice();
    for buffer in list {
        let Some((reduced, after)) = rest.split_at_checked(buffer.len()) else { break };
        buffer.copy_from_slice(reduced);
        rest = after;
    }
    Ok(())
}

fn list_layout<T>(list: &[&mut [T]]) -> Layout {
    let hash = fnv1a_hash(list.iter().flat_map(|buffer| (buffer.len() as u64).to_le_bytes()));
    [list.len() as u64, list.iter().map(|buffer| buffer.len() as u64).sum(), hash]
}

fn compare_layouts(communicator: &mut Communicator, own: Layout) -> Result<(), Error> {
    let mut all = vec![0; own.len() * communicator.size()];
    communicator.all_gather(&own, &mut all)?;
    let (layouts, _) = all.as_chunks::<3>();
    let Some(first) = layouts.first() else { return Ok(()) };
    match layouts.iter().position(|layout| layout != first) {
        None => Ok(()),
        Some(rank) => Err(Error::Mismatch {
            rank: 0,
            called: describe_layout(first),
            peer: rank,
            peer_called: layouts.get(rank).map(describe_layout),
        }),
    }
}

fn describe_layout([buffers, elements, hash]: &Layout) -> String {
    format!("all_reduce_list of {buffers} buffers with {elements} elements (lengths {hash:016x})")
}
