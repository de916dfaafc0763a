//! Test data: the input of each rank in a collective, and the check of results.
//!
//! Inputs are a pure function of seed, rank, global element index, number of ranks, operator and type. They
//! are chosen to make the result of a reduction independent of its order. So any result can be checked, bit
//! by bit, by calculating it again, without communication. (Only float averages have a tolerance:
//! [`DataSpec::bit_tolerance`].)
//!
//! [`fill_input`] and [`check`] work on host buffers; [`DeviceData`] does the same on CUDA buffers, with the
//! same values.
//!
//! The expected content of a buffer is a list of [`ExpectedSegment`]s:
//!
//! ```
//! use collectives::{DataType, ReduceOp};
//! use engine::data::{self, DataSpec, ExpectedSegment};
//!
//! // all_reduce of 100 elements by 4 ranks: every rank must receive
//! let reduced = [ExpectedSegment::reduced(0, 100)];
//! // all_gather of 100 elements from each of 4 ranks:
//! let gathered: Vec<_> = (0..4).map(|rank| ExpectedSegment::copied(rank, 0, 100)).collect();
//! // reduce_scatter with 100 elements received by each rank, on rank 3:
//! let scattered = [ExpectedSegment::reduced(300, 100)];
//!
//! let spec = DataSpec { seed: 7, ranks: 4, op: None, data_type: DataType::Float32 };
//! let mut received = vec![0; 4 * 400];
//! for (rank, part) in received.chunks_exact_mut(400).enumerate() {
//!     data::fill_input(&spec, rank as u32, 0, part)?;
//! }
//! assert_eq!(data::check(&spec, &gathered, &received)?.wrong, 0);
//! # Ok::<(), anyhow::Error>(())
//! ```

mod device;
mod format;
mod hash;
mod op;
mod recipe;
pub mod traffic;
mod value;

#[cfg(test)]
mod exactness;
#[cfg(test)]
mod lockstep;
#[cfg(test)]
mod tests;

use std::fmt;

use collectives::DataType;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

pub use device::{DeviceData, EARLY_CAPABILITY};
use format::{ElementFormat, FormatTag};
pub use op::Op;
use recipe::Recipe;
use value::{FormatTask, dispatch_format, value_bits};

/// Specification of the test data of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSpec {
    /// Seed of the data: another seed gives other values everywhere.
    pub seed: u64,
    /// Number of participating ranks: 1 to [`DataSpec::MAX_RANKS`].
    pub ranks: u32,
    /// The operator, or `None` where the collective only moves data.
    pub op: Option<Op>,
    /// The elements' type.
    pub data_type: DataType,
}

impl DataSpec {
    /// Largest number of ranks with defined data: 2^24.
    pub const MAX_RANKS: u32 = 1 << 24;

    /// Returns the largest difference between the bit patterns of a right result and of the expected one. It
    /// is 0 (bits must be equal), except for averages of floats over a number of ranks above 1024, or not a
    /// power of two. There NCCL multiplies by the rounded reciprocal, and the last bits depend on the order:
    /// 2 units in the last place. Averages of 8-bit floats are exact up to 64 ranks. Beyond, the format has
    /// few units in all: 1 unit, plus the units of a subnormal reciprocal (e4m3: one per 64 ranks; e5m2: one
    /// per 16384). It is 0 again if the reciprocal and all averages are zero (e4m3: from 1024 ranks on; e5m2:
    /// from 131072 on).
    pub fn bit_tolerance(&self) -> anyhow::Result<u64> {
        Ok(match self.op {
            Some(_) => Recipe::new(self, ElementSource::Reduced)?.0.tolerance,
            None => 0,
        })
    }
}

/// Origin of the elements of an [`ExpectedSegment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementSource {
    /// From the reduction over all ranks.
    Reduced,
    /// From the input of one rank.
    Rank(u32),
}

/// Consecutive elements that a buffer must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedSegment {
    /// Origin of the elements.
    pub source: ElementSource,
    /// The global index of the first: its place in the input of the rank (or of all ranks).
    pub first_index: u64,
    /// Number of elements.
    pub count: u64,
}

impl ExpectedSegment {
    /// Returns results of the reduction, from global index `first_index` on.
    pub const fn reduced(first_index: u64, count: u64) -> Self {
        Self { source: ElementSource::Reduced, first_index, count }
    }

    /// Returns elements of the input of `rank`, from global index `first_index` on.
    pub const fn copied(rank: u32, first_index: u64, count: u64) -> Self {
        Self { source: ElementSource::Rank(rank), first_index, count }
    }
}

/// Findings of [`check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// Number of wrong elements.
    pub wrong: u64,
    /// The wrong element with the lowest index.
    pub first: Option<WrongElement>,
}

/// A wrong element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongElement {
    /// Its index in the checked buffer.
    pub index: u64,
    /// The expected bits.
    pub expected_bits: u64,
    /// The found bits.
    pub found_bits: u64,
    /// Its type.
    pub data_type: DataType,
}

impl fmt::Display for WrongElement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (expected, found) =
            (element_text(self.expected_bits, self.data_type), element_text(self.found_bits, self.data_type));
        write!(formatter, "element {}: expected {expected}, found {found}", self.index)
    }
}

/// Returns an element with its bits: `3.5 (0x4300)`.
#[allow(clippy::cast_possible_truncation)] // the low bits are the element
fn element_text(bits: u64, data_type: DataType) -> String {
    let value = match data_type {
        DataType::Int8 => (bits as u8 as i8).to_string(),
        DataType::Int32 => (bits as u32 as i32).to_string(),
        DataType::Int64 => (bits as i64).to_string(),
        DataType::Float16 => format!("{:?}", f16::from_bits(bits as u16)),
        DataType::Bfloat16 => format!("{:?}", bf16::from_bits(bits as u16)),
        DataType::Float32 => format!("{:?}", f32::from_bits(bits as u32)),
        DataType::Float64 => format!("{:?}", f64::from_bits(bits)),
        DataType::Float8E4M3 => format!("{:?}", F8E4M3::from_bits(bits as u8).to_f32()),
        DataType::Float8E5M2 => format!("{:?}", F8E5M2::from_bits(bits as u8).to_f32()),
        _ => bits.to_string(),
    };
    format!("{value} (0x{bits:0width$x})", width = 2 * data_type.size())
}

/// Wrong elements of several checks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Number of wrong elements, at least 1.
    pub wrong: u64,
    /// Lowest index of a wrong element in any check.
    pub lowest: u64,
}

/// Fills `bytes` with the input of `rank`, from the element with global index `first_index` on.
///
/// # Errors
/// If the data is not defined, or `bytes` ends within an element.
pub fn fill_input(spec: &DataSpec, rank: u32, first_index: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
    let (recipe, format) = Recipe::new(spec, ElementSource::Rank(rank))?;
    whole_elements(spec, bytes.len() as u64)?;
    dispatch_format(format, recipe.kind, Fill { recipe: &recipe, first_index, bytes });
    Ok(())
}

/// Compares a buffer with the elements of the segments, in order.
///
/// # Errors
/// If the data is not defined, a segment requests a reduced result from a specification without an operator,
/// or the length of the segments differs from `bytes`.
pub fn check(spec: &DataSpec, segments: &[ExpectedSegment], bytes: &[u8]) -> anyhow::Result<Mismatches> {
    let size = spec.data_type.size();
    require_length(segments, size, bytes.len() as u64)?;
    let mut found = Mismatches::default();
    let mut rest = bytes;
    let mut base = 0;
    for segment in segments {
        let (recipe, format) = Recipe::new(spec, segment.source)?;
        // The sum of all segments has the length of a slice, so each of them fits usize.
        let (part, behind) = rest.split_at(usize::try_from(segment.count).unwrap_or(0) * size);
        let work = Check { recipe: &recipe, first_index: segment.first_index, bytes: part };
        let (wrong, first) = dispatch_format(format, recipe.kind, work);
        found.wrong += wrong;
        if let (None, Some((offset, expected_bits, found_bits))) = (found.first, first) {
            let (index, data_type) = (base + offset, spec.data_type);
            found.first = Some(WrongElement { index, expected_bits, found_bits, data_type });
        }
        rest = behind;
        base += segment.count;
    }
    Ok(found)
}

fn require_length(segments: &[ExpectedSegment], size: usize, bytes: u64) -> anyhow::Result<()> {
    let elements = segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.count));
    let expected = elements.saturating_mul(size as u64);
    check_length(expected, bytes)
}

/// Returns the number of elements in `bytes` bytes.
fn whole_elements(spec: &DataSpec, bytes: u64) -> anyhow::Result<u64> {
    let size = spec.data_type.size() as u64;
    check_length(bytes - bytes % size, bytes)?;
    Ok(bytes / size)
}

fn check_length(expected: u64, found: u64) -> anyhow::Result<()> {
    anyhow::ensure!(found == expected, "test data: the buffer has {found} bytes, but must have {expected}");
    Ok(())
}

struct Fill<'a> {
    recipe: &'a Recipe,
    first_index: u64,
    bytes: &'a mut [u8],
}

impl FormatTask for Fill<'_> {
    type Output = ();

    fn run_task<F: ElementFormat, const KIND: u32>(self) {
        let mut index = self.first_index;
        for element in self.bytes.chunks_exact_mut(F::BITS as usize / 8) {
            F::store(value_bits::<F, KIND>(self.recipe, index), element);
            index = index.wrapping_add(1);
        }
    }
}

struct Check<'a> {
    recipe: &'a Recipe,
    first_index: u64,
    bytes: &'a [u8],
}

impl FormatTask for Check<'_> {
    /// Number of wrong elements, and offset, expected bits and found bits of the first.
    type Output = (u64, Option<(u64, u64, u64)>);

    fn run_task<F: ElementFormat, const KIND: u32>(self) -> Self::Output {
        let mask = u64::MAX >> (64 - F::BITS);
        let mut wrong = 0;
        let mut first = None;
        for (offset, element) in (0_u64..).zip(self.bytes.chunks_exact(F::BITS as usize / 8)) {
            let index = self.first_index.wrapping_add(offset);
            let expected = value_bits::<F, KIND>(self.recipe, index) & mask;
            let found = F::load(element);
            if expected.abs_diff(found) > self.recipe.tolerance {
                first.get_or_insert((offset, expected, found));
                wrong += 1;
            }
        }
        (wrong, first)
    }
}

/// Returns the expected bits of element `index` of a buffer; `None` behind its last element.
pub fn expected_bits(
    spec: &DataSpec,
    segments: &[ExpectedSegment],
    index: u64,
) -> anyhow::Result<Option<u64>> {
    let mut offset = index;
    for segment in segments {
        if offset < segment.count {
            let (recipe, format) = Recipe::new(spec, segment.source)?;
            return Ok(Some(bits_at(&recipe, format, segment.first_index.wrapping_add(offset))));
        }
        offset -= segment.count;
    }
    Ok(None)
}

/// Returns the bits of the element with global index `index`, made by a recipe.
fn bits_at(recipe: &Recipe, format: FormatTag, index: u64) -> u64 {
    let mut element = [0; 8];
    let bytes = &mut element[..format.bits() as usize / 8];
    dispatch_format(format, recipe.kind, Fill { recipe, first_index: index, bytes });
    u64::from_le_bytes(element)
}
