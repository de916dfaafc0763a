//! Lines of a stream, decompressed if it starts like gzip or zstd.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use memchr::{memchr, memchr2};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::format;
use super::wrap::Joiner;

/// Largest number of bytes kept per line.
pub(super) const LINE: usize = 16 * 1024;
/// Size of the buffer for lines.
const BUFFER: usize = 128 * 1024;
/// First byte of a terminal's control sequences.
pub(super) const ESCAPE: u8 = 0x1b;
/// Largest window of zstd, in the decoder's memory: the window of `zstd -19`, doubled.
const WINDOW: u64 = 16 << 20;

/// Totals of a stream.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Bytes after decompression.
    pub(super) bytes: u64,
    /// Lines.
    pub(super) lines: u64,
    /// Lines longer than [`LINE`].
    pub(super) cut: u64,
    /// Reason for an incomplete read.
    pub(super) problem: Option<String>,
}

/// Calls `each` with every line, without its end, its number from 1, and false if no line near it has an
/// escape sequence or a backslash. Only the beginning of a line longer than [`LINE`] is given. The parts of a
/// line broken by a terminal are given as one line.
pub(super) fn read_lines<'a>(stream: impl Read + 'a, mut each: impl FnMut(&[u8], u64, bool)) -> Summary {
    let mut summary = Summary::default();
    let mut decoded = match decode_stream(stream) {
        Ok(decoded) => decoded,
        Err(error) => return Summary { problem: Some(error.to_string()), ..summary },
    };
    let mut buffer = vec![0; BUFFER];
    let mut line_end = b'\n';
    let mut joiner = None;
    // Bytes of an incomplete line at the beginning of the buffer, and true while the rest of a long line is
    // skipped.
    let (mut filled, mut skipping) = (0, false);
    loop {
        let is_first = summary.bytes == 0;
        let least = if is_first { format::HEAD } else { 1 };
        let (count, error) = fill_buffer(&mut decoded, &mut buffer[filled..], least);
        summary.problem = error.map(|error| error.to_string());
        if count == 0 {
            break;
        }
        summary.bytes += count as u64;
        if is_first {
            match format::line_end(&buffer[..count]) {
                Ok(end) => line_end = end,
                Err(problem) => return Summary { problem: Some(problem), ..summary },
            }
            joiner = Joiner::from_head(&buffer[..count], line_end);
        }
        let end = filled + count;
        let escapes = memchr2(ESCAPE, b'\\', &buffer[..end]).is_some();
        let (mut start, mut search) = (0, filled);
        while let Some(length) = find_line_end(line_end, &buffer[search..end]) {
            let newline = search + length;
            if skipping {
                skipping = false;
            } else {
                give_line(&buffer[start..newline], escapes, &mut summary, &mut joiner, &mut each);
            }
            start = newline + 1;
            search = start;
        }
        if skipping {
            start = end;
        } else if end - start > LINE {
            give_line(&buffer[start..end], escapes, &mut summary, &mut joiner, &mut each);
            (skipping, start) = (true, end);
        }
        buffer.copy_within(start..end, 0);
        filled = end - start;
        if summary.problem.is_some() {
            break;
        }
    }
    if filled > 0 {
        let escapes = memchr2(ESCAPE, b'\\', &buffer[..filled]).is_some();
        give_line(&buffer[..filled], escapes, &mut summary, &mut joiner, &mut each);
    }
    if let Some(joiner) = &mut joiner {
        joiner.finish_line(&mut each);
    }
    summary
}

/// Returns the position of the next end of a line.
fn find_line_end(line_end: u8, bytes: &[u8]) -> Option<usize> {
    if line_end == b'\n' { memchr(b'\n', bytes) } else { memchr2(line_end, b'\n', bytes) }
}

/// Reads at least so many bytes, or to the end or an error.
fn fill_buffer(stream: &mut impl Read, buffer: &mut [u8], least: usize) -> (usize, Option<io::Error>) {
    let mut filled = 0;
    while filled < least.min(buffer.len()) {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (filled, Some(error)),
        }
    }
    (filled, None)
}

fn give_line(
    line: &[u8],
    escapes: bool,
    summary: &mut Summary,
    joiner: &mut Option<Joiner>,
    each: &mut impl FnMut(&[u8], u64, bool),
) {
    summary.lines += 1;
    if line.len() > LINE {
        summary.cut += 1;
    }
    let line = &line[..line.len().min(LINE)];
    match joiner {
        None => each(line, summary.lines, escapes),
        Some(joiner) => joiner.join_line(line, summary.lines, escapes, each),
    }
}

/// Returns the stream through a decoder, by its first bytes.
fn decode_stream<'a>(mut stream: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::with_capacity(4);
    while head.len() < 4 {
        let mut byte = [0; 4];
        let room = 4 - head.len();
        match stream.read(&mut byte[..room]) {
            Ok(0) => break,
            Ok(count) => head.extend_from_slice(&byte[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let is_gzip = head.starts_with(&[0x1f, 0x8b]);
    let is_zstd = head == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = io::Cursor::new(head).chain(stream);
    Ok(if is_gzip {
        Box::new(Described("gzip", MultiGzDecoder::new(BufReader::with_capacity(BUFFER, whole))))
    } else if is_zstd {
        Box::new(Described("zstd", ZstdFrames::new(BufReader::with_capacity(BUFFER, whole))))
    } else {
        Box::new(whole)
    })
}

/// A decoder with the format's name in its errors.
struct Described<R>(&'static str, R);

impl<R: Read> Read for Described<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1.read(buffer).map_err(|error| {
            if error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            // Decoders report no more about a cut.
            io::Error::other(match error.kind() {
                io::ErrorKind::UnexpectedEof => format!("the {} data is cut", self.0),
                _ => format!("the {} data is broken: {error}", self.0),
            })
        })
    }
}

/// Frames of zstd, one after the other.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    is_open: bool,
    /// Error at the end of the last frame.
    failure: Option<io::Error>,
}

/// An empty last block, and a checksum: with it the decoder returns its data of a frame without an end.
const END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        Self { source, decoder, is_open: false, failure: None }
    }

    /// Starts the next frame. Returns false at the end of the stream.
    fn open_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.source).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(self.cut_error(&error)),
            }
        }
    }

    /// Returns the error. An error at the end of the stream is a cut.
    fn cut_error(&mut self, error: &dyn std::fmt::Display) -> io::Error {
        let kind = match self.source.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        let mut text = error.to_string();
        if text.contains("indow") {
            text += "; pipe it: `zstd -dc --long=31 FILE | nccl-bench doctor log -`";
        }
        io::Error::new(kind, text)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_open {
                if let Some(failure) = self.failure.take() {
                    return Err(failure);
                }
                if !self.open_frame()? {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let blocks = BlockDecodingStrategy::UptoBlocks;
                if let Err(error) = self.decoder.decode_blocks(&mut self.source, blocks(1)) {
                    let failure = self.cut_error(&error);
                    if self.failure.is_some() || self.decoder.decode_blocks(&END[..], blocks(1)).is_err() {
                        return Err(failure);
                    }
                    self.failure = Some(failure);
                }
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.is_open = false;
            let (stored, computed) =
                (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
            if self.failure.is_none() && stored.is_some() && stored != computed {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the checksum of a frame does not match",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write as _;

    fn read(stream: &[u8]) -> (Vec<String>, Summary) {
        let mut all = Vec::new();
        let summary = read_lines(stream, |line, number, _| {
            all.push(String::from_utf8_lossy(line).into_owned());
            assert_eq!(all.len() as u64, number);
        });
        (all, summary)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lines_of_any_length_are_counted_and_long_ones_are_cut() {
        let mut text = b"one\n\ntwo\n".to_vec();
        text.extend(vec![b'x'; 3_000_000]);
        text.extend(b"\nthree");
        let (all, summary) = read(&text);
        assert_eq!(all.len(), 5);
        assert_eq!((all[1].as_str(), all[2].as_str(), all[4].as_str()), ("", "two", "three"));
        assert_eq!(all[3].len(), LINE);
        assert_eq!((summary.bytes, summary.lines, summary.cut), (text.len() as u64, 5, 1));
        assert_eq!(read(b"").1.lines, 0);
    }

    #[test]
    fn lines_can_end_with_carriage_returns_and_binary_data_is_refused() {
        assert_eq!(read(b"one\rtwo\rthree").0, ["one", "two", "three"]);
        assert_eq!(read(b"1%\r2%\ntwo\n").0, ["1%\r2%", "two"]);
        for data in [b"\x7fELF\x02\x01\n\n".to_vec(), gzip(b"\x7fELF\x02\x01\n\n")] {
            let (all, summary) = read(&data);
            assert_eq!((all.len(), summary.lines), (0, 0));
            assert!(summary.problem.unwrap().contains("a program or library (ELF)"));
        }
    }

    #[test]
    fn compressed_members_are_read_one_after_the_other() {
        for compress in
            [gzip as fn(&[u8]) -> Vec<u8>, |text| compress_to_vec(text, CompressionLevel::Fastest)]
        {
            let mut both = compress(b"one\ntw");
            both.extend(compress(b"o\nthree\n"));
            let (all, summary) = read(&both);
            assert_eq!(all, ["one", "two", "three"]);
            assert_eq!(summary.problem, None);
            assert_eq!(summary.bytes, 14);
        }
        // A skippable frame of zstd between two frames of data.
        let mut frames = compress_to_vec(&b"one\n"[..], CompressionLevel::Fastest);
        frames.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        frames.extend(compress_to_vec(&b"two\n"[..], CompressionLevel::Fastest));
        assert_eq!(read(&frames).0, ["one", "two"]);
    }

    #[test]
    fn the_beginning_of_cut_data_counts_and_the_cut_is_told() {
        let text: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
        for (format, compress) in [
            ("gzip", gzip as fn(&[u8]) -> Vec<u8>),
            ("zstd", |text| compress_to_vec(text, CompressionLevel::Fastest)),
        ] {
            let mut data = compress(text.as_bytes());
            data.truncate(data.len() * 9 / 10);
            let (all, summary) = read(&data);
            assert!(all.len() > 100, "{format}: {}", all.len());
            assert_eq!(all[0], "line 0");
            let problem = summary.problem.unwrap();
            assert_eq!(problem, format!("the {format} data is cut"));
        }
        let mut broken = gzip(text.as_bytes());
        let middle = broken.len() / 2;
        broken[middle..middle + 64].fill(0xff);
        assert!(read(&broken).1.problem.unwrap().starts_with("the gzip data is broken"));
    }
}
