//! Differences between starts in words.

use judge::versus::TwoSpeeds;

use crate::command::table::format_number;

/// Largest share that is written: larger ones are disturbances, of which the number says nothing.
const LARGEST_SHARE: f64 = 9.995;

/// Writes a share in percent, with one decimal below 10 %.
pub(in crate::command) fn format_share(share: f64) -> String {
    let percent = share * 100.0;
    match share {
        _ if share >= LARGEST_SHARE => ">999 %".to_owned(),
        _ if percent < 9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// Describes two speeds: `6.05 us in 5 starts, 9.10 us in 3`.
pub(in crate::command) fn describe_two_speeds(speeds: &TwoSpeeds) -> String {
    format!(
        "{} us in {} starts, {} us in {}",
        format_number(Some(speeds.fast.time_us)),
        speeds.fast.starts,
        format_number(Some(speeds.slow.time_us)),
        speeds.slow.starts
    )
}
