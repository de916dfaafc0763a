//! Signatures of the ranks' calls, to detect ranks that call different operations.
//!
//! A [`CallSignature`] has everything about an operation that must be the same on all ranks. In shared memory
//! every message carries it, with a hash of all earlier calls. Over a network the tag of every message
//! depends on all calls so far and on the message's length: a message of another operation never matches, so
//! both ranks wait. After a long wait, or when it closes, a rank publishes its last calls, and
//! [`World::compare`](crate::world::World::compare) finds the difference.

use std::fmt;

use super::selection::Collective;
use crate::hash::fnv1a_hash;
use crate::purpose::Purpose;
use crate::world::{self, Awaited, Called};
use crate::{DataType, Element, ReduceOp};

/// A multiplier: the high bits of a product depend on all bits (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

const BARRIER: u64 = Collective::ALL.len() as u64;
const MESSAGE: u64 = BARRIER + 1;
const PART: u64 = BARRIER + 2;
const LEFT: u64 = BARRIER + 3;

/// An operation with its type, operator, root and number of elements; the latter in the lower
/// [`CallSignature::COUNT`] bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallSignature(u64);

impl CallSignature {
    const COUNT: u32 = 40;
    const ROOT: u32 = 13;
    const OP: u32 = 3;
    const TYPE: u32 = 4;
    /// Bits below the kind.
    const ALL: u32 = Self::COUNT + Self::ROOT + Self::OP + Self::TYPE;
    pub(crate) const BARRIER: Self = Self(BARRIER << Self::ALL);
    /// Signature of a rank after it has left.
    pub(crate) const LEFT: Self = Self(LEFT << Self::ALL);

    /// A collective with `count` elements for each rank.
    pub(crate) fn of_collective<E: Element>(collective: Collective, count: usize) -> Self {
        Self::new(collective as u64, E::DATA_TYPE, count)
    }

    /// A message from one rank to another.
    pub(crate) fn of_message(data_type: DataType, count: usize) -> Self {
        Self::new(MESSAGE, data_type, count)
    }

    /// One part of an all_to_all_v.
    pub(crate) fn of_part(data_type: DataType, count: usize) -> Self {
        Self::new(PART, data_type, count)
    }

    fn new(kind: u64, data_type: DataType, count: usize) -> Self {
        let kind = (kind << Self::TYPE | data_type as u64) << (Self::COUNT + Self::ROOT + Self::OP);
        Self(kind | count as u64 & ((1 << Self::COUNT) - 1))
    }

    /// Adds operator and root, if the collective has them.
    pub(crate) fn with_arguments(self, op: Option<ReduceOp>, root: Option<usize>) -> Self {
        let op = op.map_or(0, |op| op as u64 + 1);
        let root = root.map_or(0, |root| root as u64 + 1) & ((1 << Self::ROOT) - 1);
        Self(self.0 | op << (Self::COUNT + Self::ROOT) | root << Self::COUNT)
    }

    pub(crate) fn signature_word(self) -> u64 {
        self.0
    }

    pub(crate) fn of_word(word: u64) -> Self {
        Self(word)
    }
}

/// `all_reduce of 100 float32, sum`.
impl fmt::Display for CallSignature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = |shift: u32, bits: u32| (self.0 >> shift & ((1 << bits) - 1)) as usize;
        let kind = self.0 >> Self::ALL;
        let collective = match kind {
            BARRIER => return formatter.write_str("barrier"),
            LEFT => return formatter.write_str(world::LEFT),
            PART => Some(Collective::AllToAllV),
            _ => Collective::ALL.get(kind as usize).copied(),
        };
        let name = collective.map_or("send/recv", Collective::name);
        let data_type = DataType::ALL.get(field(Self::COUNT + Self::ROOT + Self::OP, Self::TYPE));
        let data_type = data_type.map_or("unknown", |data_type| data_type.name());
        let count = field(0, Self::COUNT);
        match collective {
            // Each part has a length of its own.
            Some(Collective::AllToAllV) if kind != PART => write!(formatter, "{name} of {data_type}")?,
            _ => write!(formatter, "{name} of {count} {data_type}")?,
        }
        if let Some(op) =
            field(Self::COUNT + Self::ROOT, Self::OP).checked_sub(1).and_then(|op| ReduceOp::ALL.get(op))
        {
            write!(formatter, ", {}", op.name())?;
        }
        if let Some(root) = field(Self::COUNT, Self::ROOT).checked_sub(1) {
            write!(formatter, ", root {root}")?;
        }
        Ok(())
    }
}

/// Hash of the rank's call sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallHash(u64);

impl CallHash {
    /// Returns the hash before the first call of a communicator. The settings must be the same on all ranks.
    pub(crate) fn of_settings(settings: &str) -> Self {
        Self(fnv1a_hash(settings.bytes()))
    }

    pub(crate) fn add_call(&mut self, call: CallSignature) {
        // Every bit of a call affects the highest bits, the ones in tags.
        let spread = (self.0 ^ call.0).wrapping_mul(SPREAD);
        self.0 = (spread ^ spread >> 32).wrapping_mul(SPREAD);
    }

    /// Adds the purpose of the following calls.
    pub(crate) fn add_purpose(&mut self, purpose: Purpose) {
        self.add_call(CallSignature(purpose.hash_word()));
        if let Some(step) = purpose.step_number() {
            self.add_call(CallSignature(step));
        }
    }

    pub(crate) fn hash_word(self) -> u64 {
        self.0
    }

    /// 21 bits for the tags of an operation: the lower 5 distinguish consecutive operations.
    pub(crate) fn tag_signature(self, number: u64) -> u64 {
        (self.0 >> 48) << 5 | number & 0x1f
    }
}

/// 16-bit hash of a message's length.
pub(crate) fn of_length(len: usize) -> u64 {
    (len as u64).wrapping_mul(SPREAD) >> 48
}

/// A call and its position: the same stream and number on all participating ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallRecord {
    /// 0 for an operation of all ranks; otherwise kind of message and the two ranks.
    place: u64,
    number: u64,
    call: CallSignature,
    purpose: Option<Purpose>,
}

impl CallRecord {
    const RANK: u32 = 31;

    /// The collective operation with this number.
    pub(crate) fn for_collective(number: u64, call: CallSignature, purpose: Option<Purpose>) -> Self {
        Self { place: 0, number, call, purpose }
    }

    /// The message with this number from one rank to another.
    pub(crate) fn for_message(from: usize, to: usize, number: u64, call: CallSignature) -> Self {
        Self { place: 1 << 62 | (from as u64) << Self::RANK | to as u64, number, call, purpose: None }
    }

    /// One rank's part for another in the collective operation with this number.
    pub(crate) fn for_part(from: usize, to: usize, number: u64, call: CallSignature) -> Self {
        Self { place: 2 << 62 | (from as u64) << Self::RANK | to as u64, number, call, purpose: None }
    }

    /// The same call of another rank.
    pub(crate) fn awaited_from(&self, rank: usize) -> Awaited {
        Awaited { rank, place: self.place, number: self.number }
    }

    fn as_called(&self) -> Called {
        let Self { place, number, call, purpose } = *self;
        let what = if place == 0 || call == CallSignature::LEFT {
            purpose.map_or_else(|| call.to_string(), |purpose| format!("{call}{purpose}"))
        } else {
            let rank = |place: u64| place & ((1 << Self::RANK) - 1);
            format!("{call} from rank {} to rank {}", rank(place >> Self::RANK), rank(place))
        };
        Called { place, number, what }
    }
}

/// The last calls of a rank.
pub(crate) struct CallLog {
    /// Identity of the communicator: the same on all its ranks.
    topic: u64,
    /// Ring buffer; its length is a power of two.
    entries: Vec<CallRecord>,
    count: usize,
}

impl CallLog {
    pub(crate) fn new(topic: u64, ranks: usize) -> Self {
        let most = (4 * ranks).max(64).next_power_of_two();
        Self { topic, entries: vec![CallRecord::for_collective(0, CallSignature(0), None); most], count: 0 }
    }

    pub(crate) fn log_topic(&self) -> u64 {
        self.topic
    }

    pub(crate) fn record_call(&mut self, entry: CallRecord) {
        let last = self.entries.len() - 1;
        self.entries[self.count & last] = entry;
        self.count += 1;
    }

    /// The recorded calls, in any order.
    pub(crate) fn recorded_calls(&self) -> Vec<Called> {
        let known = self.count.min(self.entries.len());
        self.entries[..known].iter().map(CallRecord::as_called).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_with_all_that_must_be_the_same() {
        for (place, collective) in Collective::ALL.into_iter().enumerate() {
            assert_eq!(collective as usize, place);
        }
        assert!(DataType::ALL.iter().enumerate().all(|(place, &data_type)| data_type as usize == place));
        assert!(ReduceOp::ALL.iter().enumerate().all(|(place, &op)| op as usize == place));
        let call = CallSignature::of_collective::<f32>(Collective::AllReduce, 100)
            .with_arguments(Some(ReduceOp::Sum), None);
        assert_eq!(call.to_string(), "all_reduce of 100 float, sum");
        let call = CallSignature::of_collective::<u8>(Collective::Reduce, 1 << 33)
            .with_arguments(Some(ReduceOp::Avg), Some(0));
        assert_eq!(call.to_string(), "reduce of 8589934592 uint8, avg, root 0");
        assert_eq!(
            CallSignature::of_collective::<f64>(Collective::AllToAllV, 0).to_string(),
            "all_to_all_v of double"
        );
        assert_eq!(CallSignature::BARRIER.to_string(), "barrier");
        assert_eq!(CallRecord::for_message(1, 0, 3, CallSignature::LEFT).as_called().what, world::LEFT);
        let message =
            CallRecord::for_message(2, 70_000, 9, CallSignature::of_message(DataType::Int32, 5)).as_called();
        assert_eq!(message.what, "send/recv of 5 int32 from rank 2 to rank 70000");
        let part = CallRecord::for_part(2, 70_000, 9, CallSignature::of_part(DataType::Int32, 0)).as_called();
        assert_eq!(part.what, "all_to_all_v of 0 int32 from rank 2 to rank 70000");
        assert_ne!(message.place, part.place);
    }

    #[test]
    fn what_was_different_once_stays_so() {
        let (mut one, mut other) = (CallHash::default(), CallHash::default());
        let call =
            CallSignature::of_collective::<f32>(Collective::Broadcast, 8000).with_arguments(None, Some(3));
        one.add_call(call);
        other.add_call(
            CallSignature::of_collective::<f32>(Collective::Broadcast, 8000).with_arguments(None, Some(2)),
        );
        for _ in 0..1000 {
            assert_ne!((one.hash_word(), one.tag_signature(7)), (other.hash_word(), other.tag_signature(7)));
            assert_ne!(one, other);
            one.add_call(call);
            other.add_call(call);
        }
    }

    #[test]
    fn calls_that_differ_in_anything_have_other_tags() {
        let all = |count| CallSignature::of_collective::<f32>(Collective::Reduce, count);
        let mut calls = vec![
            CallSignature::BARRIER,
            CallSignature::of_message(DataType::Float32, 7),
            CallSignature::of_part(DataType::Float32, 7),
        ];
        calls.extend((1..20).flat_map(|count| [all(count), all(count << 32)]));
        calls.extend((0..60).map(|root| all(7).with_arguments(None, Some(root))));
        calls.extend(ReduceOp::ALL.map(|op| all(7).with_arguments(Some(op), None)));
        calls.extend(DataType::ALL.map(|data_type| CallSignature::new(0, data_type, 7)));
        calls.extend(Collective::ALL.map(|collective| CallSignature::of_collective::<i64>(collective, 7)));
        let mut signatures: Vec<u64> = calls
            .iter()
            .map(|&call| {
                let mut history = CallHash::default();
                history.add_call(call);
                history.tag_signature(1)
            })
            .collect();
        signatures.sort_unstable();
        signatures.dedup();
        // Of 65 536 values: hardly two of so few calls collide.
        assert!(
            calls.len() > 120 && signatures.len() + 1 >= calls.len(),
            "{} of {}",
            signatures.len(),
            calls.len()
        );
        assert!(signatures.iter().all(|signature| signature >> 21 == 0));
    }

    #[test]
    fn only_the_last_calls_are_kept() {
        let mut calls = CallLog::new(1, 2);
        (0..100).for_each(|number| {
            calls.record_call(CallRecord::for_collective(number, CallSignature::BARRIER, None))
        });
        let mut numbers: Vec<u64> = calls.recorded_calls().iter().map(|called| called.number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (36..100).collect::<Vec<_>>());
    }
}
