//! Opens a result file: refuses devices and other encodings than UTF-8, decompresses it, and skips a byte
//! order mark.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Cursor, IsTerminal as _, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::compressed::Compression;
use super::error::ReadProblem;
use super::nccl_tests;
use super::non_finite::FiniteNumbers;

/// The name of standard input on a command line.
pub(super) const STANDARD_INPUT: &str = "-";
/// Bytes checked for the encoding before the rest is read.
const START: u64 = 64;
/// Bytes of leading white space after which a file counts as empty.
const BLANK: usize = 1 << 20;
/// Bytes per read.
const PIECE: usize = 1 << 16;

/// A reader of a result file, at the first character of its text.
pub(super) type FileReader<'a> = BufReader<Box<dyn Read + 'a>>;

/// A result file, by the first character of its text.
pub(super) enum Source<'a> {
    /// JSON or JSON Lines.
    Json(FileReader<'a>),
    /// Any other text.
    Text(FileReader<'a>),
}

/// Opens a regular file or a pipe; `-` is standard input. Devices are refused: some have no end.
pub(super) fn open_source(path: &Path) -> Result<Source<'static>, ReadProblem> {
    if path == Path::new(STANDARD_INPUT) {
        let input = io::stdin();
        return if input.is_terminal() {
            Err(ReadProblem::Terminal)
        } else {
            decompress_source(input.lock())
        };
    }
    let kind = fs::metadata(path)?.file_type();
    if kind.is_char_device() || kind.is_block_device() || kind.is_socket() {
        return Err(ReadProblem::Device);
    }
    decompress_source(File::open(path)?)
}

/// Decompresses a compressed file, and skips a byte order mark and white space up to the first character.
pub(super) fn decompress_source<'a>(mut from: impl Read + 'a) -> Result<Source<'a>, ReadProblem> {
    let start = read_start(&mut from)?;
    let Some(compression) = Compression::from_start(&start) else { return text_reader(start, from) };
    let mut decoded = compression.decoder(Cursor::new(start).chain(from));
    let start = self::read_start(&mut decoded)?;
    match Compression::from_start(&start) {
        Some(_) => Err(ReadProblem::Encoded("it is compressed twice: decompress it once")),
        None => text_reader(start, decoded),
    }
}

fn read_start(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    from.take(START).read_to_end(&mut start)?;
    Ok(start)
}

/// Returns a reader of a text. `start` is its beginning, and `rest` the remainder.
fn text_reader<'a>(mut start: Vec<u8>, rest: impl Read + 'a) -> Result<Source<'a>, ReadProblem> {
    if is_utf_16(&start) {
        return Err(ReadProblem::Encoded(
            "it is UTF-16, as PowerShell's > writes it: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
        ));
    }
    if start.starts_with(b"\xef\xbb\xbf") {
        start.drain(..3);
    }
    let words = nccl_tests::is_nccl_tests(&start);
    let is_binary = start.iter().any(|&byte| is_binary(byte));
    let whole = Cursor::new(start).chain(rest);
    let whole: Box<dyn Read + 'a> = if words { Box::new(FiniteNumbers::new(whole)) } else { Box::new(whole) };
    let mut source = BufReader::with_capacity(PIECE, whole);
    match first_character(&mut source)? {
        None => Err(ReadProblem::NotOurs("it is empty".to_owned())),
        Some(b'{') => Ok(Source::Json(source)),
        Some(_) if is_binary => Err(ReadProblem::NotOurs("it is neither JSON nor text".to_owned())),
        Some(_) => Ok(Source::Text(source)),
    }
}

/// Returns true for control characters that a terminal does not use.
const fn is_binary(byte: u8) -> bool {
    byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x07 | 0x08 | 0x0c | 0x1b)
}

fn is_utf_16(start: &[u8]) -> bool {
    matches!(start, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b' '..=b'~', 0, ..] | [0, b' '..=b'~', ..])
}

/// Skips white space, and returns the next character without consuming it.
fn first_character(source: &mut impl BufRead) -> Result<Option<u8>, ReadProblem> {
    let mut blank = 0;
    loop {
        let piece = source.fill_buf()?;
        let at = piece.iter().position(|byte| !byte.is_ascii_whitespace());
        let (found, passed) = (at.map(|at| piece[at]), at.unwrap_or(piece.len()));
        source.consume(passed);
        blank += passed;
        if found.is_some() || passed == 0 || blank > BLANK {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_text;
    use crate::files::json_lines::tests::whole;
    use crate::sample;

    #[test]
    fn a_byte_order_mark_and_white_space_are_passed_over() {
        let run = sample::full_run();
        let json = include_str!("../../../tests/data/run.json");
        for text in [json, &whole(&run), &json.replace('\n', "\r\n")] {
            for before in ["\u{feff}", "\u{feff}\n \n", "\n"] {
                assert_eq!(parse_text(format!("{before}{text}").as_bytes()).unwrap(), run, "{before:?}");
            }
        }
        let nccl_tests = include_str!("../../../tests/data/all_reduce.json").replacen("12.936469", "nan", 1);
        let marked = parse_text(format!("\u{feff}{nccl_tests}").as_bytes()).unwrap();
        assert!(marked.measurements[0].time_us.is_nan() && marked.measurements.len() == 62);
        let blank = parse_text(&b" ".repeat(super::BLANK + super::PIECE)).unwrap_err().to_string();
        assert!(blank.ends_with("it is empty"), "{blank}");
    }

    #[test]
    fn another_encoding_is_named_with_the_way_out() {
        let json = include_str!("../../../tests/data/run.json");
        let wide = |bytes: fn(u16) -> [u8; 2]| json.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        let (little, big) = (wide(u16::to_le_bytes), wide(u16::to_be_bytes));
        for text in [&little, &big, &[&b"\xff\xfe"[..], &little].concat(), &[&b"\xfe\xff"[..], &big].concat()]
        {
            let said = parse_text(text).unwrap_err().to_string();
            assert!(said.contains("UTF-16") && said.contains("iconv -f UTF-16 -t UTF-8"), "{said}");
        }
    }

    #[test]
    fn fields_in_any_order_are_read() {
        let run = sample::full_run();
        let value: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/data/run.json")).unwrap();
        // `serde_json::Value` sorts fields by name; printed on one line.
        assert_eq!(parse_text(value.to_string().as_bytes()).unwrap(), run);
        let twice = value.to_string().replacen('{', "{\"measurements\":[],", 1);
        let said = parse_text(twice.as_bytes()).unwrap_err().to_string();
        assert!(said.contains("two lists"), "{said}");
        let nccl_tests = include_str!("../../../tests/data/all_reduce.json");
        let value: serde_json::Value = serde_json::from_str(nccl_tests).unwrap();
        assert_eq!(
            parse_text(value.to_string().as_bytes()).unwrap(),
            parse_text(nccl_tests.as_bytes()).unwrap()
        );
    }
}
