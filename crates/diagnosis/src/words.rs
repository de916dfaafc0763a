//! Words of sentences and tables: lists, numbers with nouns, ranges, sizes.

/// Largest number of names and ranges in a list. Further ones are counted.
const SHOWN: usize = 8;

/// Returns a list: `a`, `a and b`, `a, b and c`, `a, b, c, d, e, f, g, h and 5 more`.
pub fn join_list<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match (names.len() - shown.len(), &shown[..]) {
        (0, [others @ .., last]) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        (0, _) => shown.join(", "),
        (more, _) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns a number with its noun: `1 port`, `3 ports`, `8 processes`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let ending = match count {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{count} {noun}{ending}")
}

/// Returns the form of a word after a number: `is` or `are`, `port` or `ports`.
pub fn plural<'a>(count: usize, singular: &'a str, plural: &'a str) -> &'a str {
    if count == 1 { singular } else { plural }
}

/// Returns the text with a capital letter at the beginning.
pub fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns ascending numbers as ranges: `0-3, 7`.
pub fn ranges_text(numbers: &[u32]) -> String {
    all_ranges(numbers).join(", ")
}

/// Returns ascending ranks: `rank 3`, `ranks 0-3, 7`. Ranges after the first 16 are counted.
pub(crate) fn ranks_in_words(ranks: &[u32]) -> String {
    const MOST: usize = 2 * SHOWN;
    let ranges = all_ranges(ranks);
    let text = match ranges.len().saturating_sub(MOST) {
        0 => ranges.join(", "),
        more => format!("{} and {more} more ranges", ranges[..MOST].join(", ")),
    };
    format!("{} {text}", plural(ranks.len(), "rank", "ranks"))
}

fn all_ranges(numbers: &[u32]) -> Vec<String> {
    let runs = numbers.chunk_by(|one, next| *next <= one.saturating_add(1));
    runs.map(|run| match (run.first(), run.last()) {
        (Some(first), Some(last)) if first != last => format!("{first}-{last}"),
        (first, _) => or_dash(first),
    })
    .collect()
}

/// Returns bytes in the largest binary unit with a number of at least 1.
pub(crate) fn size_text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            if tenths % 10 == 0 || tenths >= 1000 {
                format!("{} {unit}", tenths / 10)
            } else {
                format!("{}.{} {unit}", tenths / 10, tenths % 10)
            }
        }
    }
}

/// Returns the text of a possibly unknown fact, or a dash.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Returns the sort key of the natural order.
pub(crate) fn natural_key(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let (text, after) = rest.split_at(word);
        let digits = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        parts.push((text.to_owned(), number.parse().unwrap_or(0)));
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sizes_are_short() {
        assert_eq!(join_list::<&str>(&[]), "");
        assert_eq!(
            [join_list(&["a"]), join_list(&["a", "b"]), join_list(&["a", "b", "c"])],
            ["a", "a and b", "a, b and c"]
        );
        assert_eq!(
            [counted(1, "process"), counted(8, "process"), counted(0, "port")],
            ["1 process", "8 processes", "0 ports"]
        );
        let letters = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        assert_eq!(join_list(&letters[..8]), "a, b, c, d, e, f, g and h");
        assert_eq!(join_list(&letters), "a, b, c, d, e, f, g, h and 2 more");
        assert_eq!(
            [size_text(64 << 20), size_text(1536), size_text(12), size_text(u64::MAX)],
            ["64 MiB", "1.5 KiB", "12 bytes", "16777215 TiB"]
        );
    }

    #[test]
    fn ranks_are_ranges_of_which_many_are_counted() {
        assert_eq!(ranges_text(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges_text(&[3, 3, u32::MAX]), "3, 4294967295");
        assert_eq!([ranks_in_words(&[4]), ranks_in_words(&[0, 1])], ["rank 4", "ranks 0-1"]);
        let even: Vec<u32> = (0..40).step_by(2).collect();
        assert!(ranks_in_words(&even).ends_with("28, 30 and 4 more ranges"), "{}", ranks_in_words(&even));
    }

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let mut names = ["mlx5_10", "mlx5_2", "eth0"];
        names.sort_by_cached_key(|name| natural_key(name));
        assert_eq!(names, ["eth0", "mlx5_2", "mlx5_10"]);
    }

    #[test]
    fn words_follow_their_number() {
        assert_eq!([counted(1, "port"), counted(0, "port")], ["1 port", "0 ports"]);
        assert_eq!([plural(1, "is", "are"), plural(2, "is", "are")], ["is", "are"]);
        assert_eq!([capitalize("rank 1 waits"), capitalize("")], ["Rank 1 waits", ""]);
    }
}
