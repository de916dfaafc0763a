//! Times as the lines of a log have them.

use jiff::civil::DateTime;

/// A time of a line. Only times of one zone are compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moment {
    /// A time without a year is in the year 2000, a leap year.
    time: DateTime,
    /// `Z`, `+09:00`, or nothing. `None` for a time without a year.
    zone: Option<String>,
}

impl Moment {
    /// Reads a time. Returns `None` for other forms, and for forms without the day.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::parse_dated(text).or_else(|| Self::of_month(text)).or_else(|| Self::with_weekday(text))
    }

    /// Returns the seconds from another time to this one, or `None` for times of different zones.
    pub(super) fn seconds_since(&self, other: &Self) -> Option<f64> {
        (self.zone == other.zone).then(|| self.time.duration_since(other.time).as_secs_f64())
    }

    /// Reads `2025-12-28 16:04:25.123Z`.
    fn parse_dated(text: &str) -> Option<Self> {
        let (_, rest) = text.split_at_checked(text.find(':')? + ":04:25".len())?;
        let zone = rest
            .strip_prefix(['.', ','])
            .map_or(rest, |part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
        let time = text.strip_suffix(zone)?.parse().ok()?;
        Some(Self { time, zone: Some(zone.to_owned()) })
    }

    /// Reads `1124 13:48:00.36`, written by PyTorch and other programs in the format of glog.
    fn of_month(text: &str) -> Option<Self> {
        let (month, rest) = text.split_at_checked(2)?;
        Some(Self { zone: None, ..Self::parse_dated(&format!("2000-{month}-{rest}"))? })
    }

    /// Reads `Tue Nov 24 13:42:01 2026`.
    fn with_weekday(text: &str) -> Option<Self> {
        let (_, date) = text.split_once(' ')?;
        let time = DateTime::strptime("%b %d %H:%M:%S %Y", date).ok()?;
        Some(Self { time, zone: Some(String::new()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_one_form_have_a_difference_in_seconds() {
        for (one, other, seconds) in [
            ("2025-12-28 16:04:27", "2025-12-28 16:04:26", Some(1.0)),
            ("2025-12-28T16:04:25.5Z", "2025-12-28T16:04:25.25Z", Some(0.25)),
            ("2026-01-01 00:00:01", "2025-12-31 23:59:59", Some(2.0)),
            ("2024-03-01 00:00:00", "2024-02-28 00:00:00", Some(2.0 * 86_400.0)),
            ("2025-03-01 00:00:00", "2025-02-28 00:00:00", Some(86_400.0)),
            ("Wed Nov 25 13:42:01 2026", "Tue Nov 24 13:42:01 2026", Some(86_400.0)),
            ("Tue Nov 24 13:42:01 2026", "2026-11-24 13:42:00", Some(1.0)),
            ("1124 13:48:00.5", "1124 13:47:00.25", Some(60.25)),
            // The zones or the forms differ.
            ("2026-11-24T13:42:01+09:00", "2026-11-24T13:42:00Z", None),
            ("1124 13:48:00.5", "2026-11-24 13:47:00", None),
        ] {
            let difference = Moment::parse(one).unwrap().seconds_since(&Moment::parse(other).unwrap());
            assert_eq!(difference, seconds, "{one} {other}");
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "13:48:01.36",
            "999.5",
            "2026-11-24",
            "2026-13-24 13:42:00",
            "2026-11-24 1:2:3é",
            "+124 13:48:00",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
