//! Lines of a text: escape sequences, and the prefixes of launchers and of collectors of logs.

/// Maximum number of prefixes of a line.
const MOST_PREFIXES: usize = 8;
/// Maximum length of a prefix, in bytes.
const LONGEST_PREFIX: usize = 200;
/// Names of months in the time stamps of syslog and journald.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Marks of Open MPI after the rank.
const OUTPUT_MARKS: [&str; 3] = ["<stdout>:", "<stderr>:", "<stddiag>:"];

/// Returns the line as text without the escape sequences of a terminal.
pub(super) fn clean_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    if !text.contains('\u{1b}') {
        return text.into_owned();
    }
    let mut cleaned = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            cleaned.push(letter);
            continue;
        }
        match letters.next() {
            // Control sequence: parameters, then a final letter.
            Some('[') => drop(letters.find(|letter| ('\u{40}'..='\u{7e}').contains(letter))),
            // Command of the operating system, such as a title: up to the bell, or an escape.
            Some(']') => drop(letters.find(|&letter| letter == '\u{7}' || letter == '\u{1b}')),
            _ => {}
        }
    }
    cleaned
}

/// The readings of a line: first the whole line, then the line without one prefix, without two, and so on.
/// Each has the tag of the prefixes before it, which names the stream of the line; times are not part of it.
pub(super) struct Readings<'a> {
    tag: String,
    rest: Option<&'a str>,
    left: usize,
}

impl<'a> Readings<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self { tag: String::new(), rest: Some(line.trim()), left: MOST_PREFIXES }
    }

    /// Returns the next reading and its tag.
    pub(super) fn next_reading(&mut self) -> Option<(&str, &'a str)> {
        let rest = self.rest?;
        if self.left < MOST_PREFIXES {
            let Some((tag, after)) = strip_prefix(rest) else {
                self.rest = None;
                return None;
            };
            if let Some(tag) = tag {
                self.tag.push('\n');
                self.tag.push_str(tag);
            }
            self.rest = Some(after.trim_start());
        }
        self.left = self.left.checked_sub(1)?;
        Some((&self.tag, self.rest?))
    }
}

/// Removes one prefix. Returns its tag, if it has one, and the rest.
fn strip_prefix(line: &str) -> Option<(Option<&str>, &str)> {
    let before = |after: &str| &line[..line.len() - after.len()];
    if let Some(quoted) = line.strip_prefix('>') {
        return Some((None, quoted));
    }
    if let Some(after) = strip_output_mark(line) {
        // A time stamp can be before the rank.
        let tag = before(after).find('[').map(|start| &before(after)[start..]);
        return Some((tag.map(strip_mark), after));
    }
    for (open, close) in [('[', ']'), ('(', ')')] {
        if let Some((inside, after)) = line.strip_prefix(open).and_then(|rest| rest.split_once(close))
            && inside.len() <= LONGEST_PREFIX
        {
            let is_time = inside.split_whitespace().all(is_time);
            return Some(((!is_time).then_some(inside), after.strip_prefix(':').unwrap_or(after)));
        }
    }
    let (word, after) = line.split_once(char::is_whitespace)?;
    let after = after.trim_start();
    if is_time(word) {
        return Some((None, after));
    }
    if MONTHS.contains(&word) {
        let (day, after) = after.split_once(char::is_whitespace)?;
        let (time, after) = after.trim_start().split_once(char::is_whitespace)?;
        return (day.parse::<u8>().is_ok() && is_time(time)).then_some((None, after));
    }
    if word.len() > LONGEST_PREFIX {
        return None;
    }
    if let Some(tag) = word.strip_suffix(':') {
        return Some((Some(tag), after));
    }
    let (second, last) = after.split_once(char::is_whitespace)?;
    if second == "|" {
        return Some((Some(word), last));
    }
    // The host, and the program with its process: `node1 srun[1234]: `.
    (second.ends_with("]:") && second.len() <= LONGEST_PREFIX).then(|| (Some(before(last).trim_end()), last))
}

/// Returns the text after Open MPI's mark of standard output or standard error.
fn strip_output_mark(line: &str) -> Option<&str> {
    let mark = |mark: &&str| line.find(*mark).map(|at| (at, at + mark.len()));
    let (at, end) = OUTPUT_MARKS.iter().filter_map(mark).min()?;
    (at <= LONGEST_PREFIX).then(|| &line[end..])
}

/// Removes Open MPI's mark: both outputs of a rank are one stream.
fn strip_mark(tag: &str) -> &str {
    OUTPUT_MARKS.iter().find_map(|mark| tag.strip_suffix(mark)).unwrap_or(tag)
}

/// Returns true for a date, a time of day, or both: `2024-01-01`, `12:00:00.5`, `2024-01-01T12:00:00Z`.
fn is_time(word: &str) -> bool {
    let count = |sign: char| word.matches(sign).count();
    let of_time = |letter: char| letter.is_ascii_digit() || "-:.,TZ+/".contains(letter);
    let is_date = || word.len() == 10 && (count('-') == 2 || count('/') == 2);
    word.starts_with(|letter: char| letter.is_ascii_digit())
        && word.chars().all(of_time)
        && (count(':') >= 2 || is_date())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last reading of a line.
    fn last_reading(line: &str) -> (String, String) {
        let mut readings = Readings::new(line);
        let mut last = (String::new(), String::new());
        while let Some((tag, rest)) = readings.next_reading() {
            last = (tag.trim_start().replace('\n', " "), rest.to_owned());
        }
        last
    }

    #[test]
    fn prefixes_are_removed_and_their_tags_kept() {
        let row = "8  2  float";
        for (prefix, tag) in [
            ("", ""),
            ("    ", ""),
            ("> ", ""),
            (">     > ", ""),
            ("[1,0]<stdout>:", "[1,0]"),
            ("[1,0]<stderr>: ", "[1,0]"),
            ("[prterun-node1-77@1,3]<stdout>: ", "[prterun-node1-77@1,3]"),
            ("Thu Jan  1 00:00:00 2026[1,0]<stdout>:", "[1,0]"),
            ("0: ", "0"),
            ("  12: ", "12"),
            ("node-3.cluster: ", "node-3.cluster"),
            ("[0] ", "0"),
            ("[rank0]: ", "rank0"),
            ("[pod/nccl-launcher-x2/main] ", "pod/nccl-launcher-x2/main"),
            ("2024-01-01T00:00:00.0000000Z ", ""),
            ("2024-01-01 00:00:00,123 ", ""),
            ("[2024-01-01 00:00:00] ", ""),
            ("Jan 01 12:00:00 node1 srun[123]: ", "node1 srun[123]:"),
            ("2024-01-01T00:00:00+0000 node1 nccl[7]: ", "node1 nccl[7]:"),
            ("worker-1  | ", "worker-1"),
            ("(RayTrainWorker pid=4, ip=10.0.0.1) ", "RayTrainWorker pid=4, ip=10.0.0.1"),
            ("2024-01-01T00:00:00Z [pod/a/b] 3: [1,0]<stdout>: > ", "[pod/a/b] 3: [1,0]"),
        ] {
            let found = last_reading(&format!("{prefix}{row}"));
            assert_eq!(found, (tag.to_owned(), row.to_owned()), "{prefix}");
        }
    }

    #[test]
    fn escape_sequences_are_removed() {
        let line = b"\x1b[1;32m# size\x1b[0m \x1b]0;title\x07count\x1b";
        assert_eq!(clean_line(line), "# size count");
        assert_eq!(clean_line(b"\xffa\x1b["), "\u{fffd}a");
    }
}
