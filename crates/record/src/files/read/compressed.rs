//! Decoding of compressed files during reading.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Largest window of zstd, kept in memory by the decoder: twice the window of `zstd -19`.
const WINDOW: u64 = 16 << 20;

/// A format of compressed files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// Returns the format of a file from its first bytes; `None` for an uncompressed file.
    pub(super) fn from_start(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the content of the file `from`.
    pub(super) fn decoder<'a>(self, from: impl Read + 'a) -> Box<dyn Read + 'a> {
        let from = BufReader::new(from);
        match self {
            Self::Gzip => Box::new(NamedDecoder("gzip", MultiGzDecoder::new(from))),
            Self::Zstd => Box::new(NamedDecoder("zstd", Frames::new(from))),
        }
    }
}

/// A decoder with the format's name in its errors.
struct NamedDecoder<R>(&'static str, R);

impl<R: Read> Read for NamedDecoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Self(format, decoder) = self;
        decoder.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            io::ErrorKind::UnexpectedEof => io::Error::other(format!("the {format} data is cut")),
            _ => io::Error::other(format!("the {format} data is broken: {error}")),
        })
    }
}

/// Frames of zstd, one after the other.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    is_open: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        Self { source, decoder, is_open: false }
    }

    /// Starts the next frame; returns false at the end of the file.
    fn open_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                }
                Err(error @ FrameDecoderError::WindowSizeTooBig { .. }) => {
                    let way_out = "pipe it: zstd -dc --long=31 FILE | nccl-bench compare - OTHER";
                    return Err(io::Error::other(format!("{error}; {way_out}")));
                }
                Err(error) => return Err(self.broken_error(error)),
            }
        }
        Ok(false)
    }

    /// Returns the error; at the end of the file it means incomplete data.
    fn broken_error(&mut self, error: FrameDecoderError) -> io::Error {
        match self.source.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof.into(),
            _ => io::Error::other(error),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_open {
                self.is_open = self.open_frame()?;
                if !self.is_open {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                if let Err(error) = self.decoder.decode_blocks(&mut self.source, one) {
                    return Err(self.broken_error(error));
                }
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.is_open = false;
            let stored = self.decoder.get_checksum_from_data();
            if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
                return Err(io::Error::other("the checksum of a frame does not match"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::super::parse_text;
    use crate::files::json_lines::tests::whole;
    use crate::sample;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    type Compress = fn(&[u8]) -> Vec<u8>;

    const BOTH: [(&str, Compress); 2] = [("gzip", gzip), ("zstd", zstd)];

    #[test]
    fn compressed_files_are_read_also_in_several_parts() {
        let run = sample::full_run();
        let lines = whole(&run);
        for (format, compress) in BOTH {
            let json = compress(include_bytes!("../../../tests/data/run.json"));
            assert_eq!(parse_text(&json).unwrap(), run, "{format}");
            let (one, other) = lines.split_at(lines.len() / 2);
            let parts = [compress(one.as_bytes()), compress(other.as_bytes())].concat();
            assert_eq!(parse_text(&parts).unwrap(), run, "{format}");
            let nccl_tests = compress(include_bytes!("../../../tests/data/all_reduce.json"));
            assert_eq!(parse_text(&nccl_tests).unwrap().measurements.len(), 62, "{format}");
        }
    }

    #[test]
    fn what_is_cut_or_compressed_twice_is_refused() {
        let json = include_bytes!("../../../tests/data/run.json");
        for (format, compress) in BOTH {
            let mut cut = compress(json);
            cut.truncate(cut.len() * 9 / 10);
            let said = parse_text(&cut).unwrap_err().to_string();
            assert!(said.contains(&format!("it cannot be read: the {format} data is cut")), "{said}");
            let said = parse_text(&compress(&compress(json))).unwrap_err().to_string();
            assert_eq!(said, "it is compressed twice: decompress it once");
        }
    }
}
