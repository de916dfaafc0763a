//! Times as the lines of a log have them.

/// A time of a line, as seconds and the form that it was written in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moment {
    seconds: f64,
    form: Form,
}

/// The form of a time. Only times of one form are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// With date, `2025-12-28 16:04:25.123` or `Tue Nov 24 13:42:01 2026`, and the zone: `Z`, `+09:00`, or nothing.
    Dated(String),
    /// `1124 13:48:00.36`, month and day without a year.
    MonthAndDay,
}

/// Names of the months in times of the form `Tue Nov 24 13:42:01 2026`.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Moment {
    /// Reads a time; `None` for other forms, and for those that lack the day.
    pub(super) fn of(text: &str) -> Option<Self> {
        Self::dated(text).or_else(|| Self::of_month(text)).or_else(|| Self::with_weekday(text))
    }

    /// The seconds from another time to this one; `None` for times of different forms.
    pub(super) fn seconds_since(&self, other: &Self) -> Option<f64> {
        (self.form == other.form).then_some(self.seconds - other.seconds)
    }

    /// `2025-12-28 16:04:25.123Z`.
    fn dated(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let [year, month, day] = numbers(date, '-')?;
        let rest = rest.strip_prefix([' ', 'T'])?;
        let (seconds, zone) = clock(rest)?;
        let seconds = seconds + days(year, month, day)? * 86_400.0;
        Some(Self { seconds, form: Form::Dated(zone.to_owned()) })
    }

    /// `1124 13:48:00.36`, of PyTorch and other programs that log as glog does.
    fn of_month(text: &str) -> Option<Self> {
        let (date, rest) = text.split_once(' ')?;
        let is_date = date.len() == 4 && date.bytes().all(|byte| byte.is_ascii_digit());
        let date: u32 = date.parse().ok().filter(|_| is_date)?;
        let (seconds, _) = clock(rest)?;
        // A year that has all days.
        let seconds = seconds + days(2000, date / 100, date % 100)? * 86_400.0;
        Some(Self { seconds, form: Form::MonthAndDay })
    }

    /// `Tue Nov 24 13:42:01 2026`.
    fn with_weekday(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace().skip(1);
        let month = words.next()?;
        let month = MONTHS.iter().position(|name| *name == month)?;
        let day: u32 = words.next()?.parse().ok()?;
        let (seconds, _) = clock(words.next()?)?;
        let year: u32 = words.next()?.parse().ok()?;
        let seconds = seconds + days(year, u32::try_from(month).ok()? + 1, day)? * 86_400.0;
        Some(Self { seconds, form: Form::Dated(String::new()) })
    }
}

/// Reads `16:04:25.123Z`: the seconds of the day, and the zone.
fn clock(text: &str) -> Option<(f64, &str)> {
    let (clock, rest) = text.split_at_checked(8)?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let seconds = f64::from(hour.checked_mul(3600)?) + f64::from(minute * 60) + f64::from(second);
    let part = rest.strip_prefix(['.', ',']).unwrap_or_default();
    let digits = part.bytes().take_while(u8::is_ascii_digit).count();
    let Some((part, zone)) = part.split_at_checked(digits).filter(|(part, _)| !part.is_empty()) else {
        return Some((seconds, rest));
    };
    Some((seconds + format!("0.{part}").parse::<f64>().ok()?, zone))
}

/// Reads three numbers with separators between them, of at most four digits.
fn numbers(text: &str, separator: char) -> Option<[u32; 3]> {
    let mut parts = text.split(separator).map(|part| match part.bytes().all(|byte| byte.is_ascii_digit()) {
        true if part.len() <= 4 => part.parse::<u32>().ok(),
        _ => None,
    });
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

/// Days since the beginning of the year 0 to a date of the Gregorian calendar.
fn days(year: u32, month: u32, day: u32) -> Option<f64> {
    const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let before = BEFORE.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    let is_leap =
        |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let year = year.min(9999);
    let last = year.saturating_sub(1);
    let leaps = last / 4 - last / 100 + last / 400 + u32::from(is_leap(year) && month > 2);
    Some(f64::from(year * 365 + leaps + before + day))
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
            let difference = Moment::of(one).unwrap().seconds_since(&Moment::of(other).unwrap());
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
            assert_eq!(Moment::of(text), None, "{text}");
        }
    }
}
