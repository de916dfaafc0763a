//! Facts in the output of programs: the number of ranks, tables of nccl-tests, and bars of progress.

use super::digest::{Digest, Example, Position};
use super::sizes::Sizes;
use super::tables::Tables;
use super::text;

/// Facts read from the output of programs.
#[derive(Debug, Default)]
pub(super) struct Output {
    sizes: Sizes,
    tables: Tables,
    bar: Option<Example>,
}

impl Output {
    /// Notes the facts of a line of another program.
    pub(super) fn note_line(&mut self, line: &[u8], position: Position) {
        self.sizes.note_line(line);
        self.tables.note_line(line);
        if let Some(bar) = parse_bar(line) {
            let is_open = !bar.starts_with(b"100%");
            self.bar = is_open.then(|| Example { position, text: text::name(&bar), ..Example::default() });
        }
    }

    /// Notes a cut line of NCCL.
    pub(super) fn note_cut_line(&mut self, line: &[u8]) {
        self.sizes.note_line(line);
    }

    /// Moves the facts into the digest.
    pub(super) fn move_into_digest(self, digest: &mut Digest) {
        self.sizes.move_into_digest(digest);
        (digest.tables, digest.open_bar) = (self.tables.into_tables(), self.bar);
    }
}

/// Returns the last bar of progress of tqdm in a line, without its drawing: `92% 328986/359152 [29:58<12:05`
/// of `Tokenizing:  92%|#####  | 328986/359152 [29:58<12:05, 41.59 examples/s]`.
fn parse_bar(line: &[u8]) -> Option<Vec<u8>> {
    let percent = memchr::memrchr_iter(b'%', line).find(|percent| line[percent + 1..].starts_with(b"|"))?;
    let digits = text::count_at_end(&line[..percent], 3, |byte| byte.is_ascii_digit());
    let rest = &line[percent + 2..];
    let rest = rest[memchr::memchr(b'|', rest)? + 1..].trim_ascii_start();
    let open = memchr::memchr(b'[', rest)?;
    let end = open + memchr::memchr2(b',', b']', &rest[open..])?;
    let is_time = memchr::memchr(b'<', &rest[open..end]).is_some();
    (digits > 0 && is_time).then(|| [&line[percent - digits..=percent], b" ", &rest[..end], b"]"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bar_that_is_not_full_is_kept() {
        let bar = "Tokenizing Prompts (num_proc=64):  92%|#########1| 328986/359152 [29:58<12:05, 41.59 examples/s]";
        let told = |lines: &[&str]| {
            let mut output = Output::default();
            lines.iter().for_each(|line| output.note_line(line.as_bytes(), Position::default()));
            output.bar.map(|bar| bar.text)
        };
        assert_eq!(told(&[bar]).as_deref(), Some("92% 328986/359152 [29:58<12:05]"));
        assert_eq!(told(&[&format!("3%|x| 1/9 [00:01<00:08, 1.0it/s]\\r{bar}"), "a line"]), told(&[bar]));
        assert_eq!(told(&[bar, "100%|##########| 9/9 [00:09<00:00, 1.00it/s]"]), None);
        for line in ["92% of it | 3", "%|x| 1/9 [00:01<00:08]", "9%|x", "9%|x| 1/9 [00:01, 2]", "9%|x| 1/9"] {
            assert_eq!(told(&[line]), None, "{line}");
        }
    }
}
