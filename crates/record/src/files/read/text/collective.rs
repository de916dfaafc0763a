//! The collective of a table whose text does not name it.

use super::table::{Check, Columns, Half, Row};
use crate::collective::Collective;
use crate::run::Placement;

/// Smallest bus bandwidth in GB/s with enough digits to tell the factors of collectives apart.
const CLEAR_BUSBW: f64 = 1.0;

/// Returns the collectives that can have printed the table. `ranks` is the number of ranks, if it is known.
pub(super) fn list_possible(columns: &Columns, rows: &[Row], ranks: Option<usize>) -> Vec<Collective> {
    let fits = |collective: &Collective| {
        rows.iter().all(|row| {
            fits_cells(*collective, columns, row)
                && ranks.is_none_or(|ranks| {
                    collective.runs_over(ranks)
                        && fits_count(*collective, row, ranks)
                        && row.halves.iter().all(|half| fits_factor(*collective, half, ranks))
                })
        }) && fits_checks(*collective, columns, rows)
    };
    Collective::ALL.into_iter().filter(fits).collect()
}

/// Compares the cells of operator and root. A collective without an operator can have any text there, and
/// sendrecv has the name of an operator.
fn fits_cells(collective: Collective, columns: &Columns, row: &Row) -> bool {
    let of_operator = match row.op {
        Some(_) => collective.is_reduction() || collective == Collective::SendRecv,
        None => !collective.is_reduction(),
    };
    // Older tables lack the columns that their collective does not need.
    let of_root = match (columns.has_root(), row.root) {
        (true, Some(_)) => collective.has_root(),
        (true, None) => !collective.has_root(),
        (false, _) => !matches!(collective, Collective::Broadcast | Collective::Reduce),
    };
    of_root && (of_operator || !columns.has_operator() && !collective.is_reduction())
}

/// Compares the size with the count, which is that of a part of the buffer for some collectives.
fn fits_count(collective: Collective, row: &Row, ranks: usize) -> bool {
    let Some(element) = element_bytes(&row.data_type) else { return true };
    let Some(part) = row.count.checked_mul(element) else { return true };
    if ranks < 2 || row.bytes == 0 || collective == Collective::AllToAllV {
        return true;
    }
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv => {
            row.bytes == part
        }
        _ => part.checked_mul(ranks as u64) == Some(row.bytes),
    }
}

/// Compares the two bandwidths, where they have enough digits.
fn fits_factor(collective: Collective, half: &Half, ranks: usize) -> bool {
    let (algbw, busbw) = (half.algbw, half.busbw);
    let factor = collective.bus_factor(ranks);
    let is_clear = algbw.value >= CLEAR_BUSBW && algbw.value.is_finite() && busbw.value.is_finite();
    !is_clear || busbw.agrees_with(algbw.value * factor, algbw.rounding * factor)
}

/// Compares the verification in place: collectives without such a form have none there.
fn fits_checks(collective: Collective, columns: &Columns, rows: &[Row]) -> bool {
    let verified = |placement: Placement| {
        let mut halves = rows.iter().flat_map(|row| &row.halves).filter(|half| half.placement == placement);
        halves.any(|half| half.check != Check::NotAvailable)
    };
    // Other columns have a number for data that was not verified.
    if !columns.counts_wrong() || !verified(Placement::OutOfPlace) {
        return true;
    }
    verified(Placement::InPlace) == collective.has_in_place()
}

/// Returns the bytes of an element, by NCCL's name of the type.
pub(super) fn element_bytes(data_type: &str) -> Option<u64> {
    match data_type {
        "int8" | "uint8" | "char" | "f8e4m3" | "f8e5m2" | "fp8_e4m3" | "fp8_e5m2" => Some(1),
        "half" | "bfloat16" => Some(2),
        "int32" | "uint32" | "int" | "float" => Some(4),
        "int64" | "uint64" | "double" => Some(8),
        _ => None,
    }
}
