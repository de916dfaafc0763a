//! Numbers as C prints them.

/// A number in `width` columns with as many of two decimals as fit, else in scientific notation.
pub(super) fn format_float(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:>width$.decimals$}").to_lowercase();
        if text.len() <= width {
            return text;
        }
    }
    format!("{:>width$}", format_scientific(value, usize::from(width >= 7)))
}

/// C's `%.{decimals}e`: an exponent of at least two digits, with its sign.
fn format_scientific(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text.to_lowercase(),
    }
}

/// C's `%g`: six significant digits without trailing zeros.
pub fn format_significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let rounded = format!("{value:.5e}");
    let exponent: i32 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{value:.*}", usize::try_from(5 - exponent).unwrap_or(0)));
    }
    let text = format_scientific(value, 5);
    text.split_once('e').map_or(text.clone(), |(mantissa, exponent)| format!("{}e{exponent}", trim(mantissa)))
}
