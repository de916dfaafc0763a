//! The form of an input by its first bytes: text, or something to refuse.

use memchr::memchr;

/// Number of bytes at the beginning of an input, for the detection of its form.
pub(super) const HEAD: usize = 4096;

/// Beginnings of files other than text, with their names and the remedy.
const FORMS: [(&[u8], &str); 14] = [
    (b"\x7fELF", "a program or library (ELF); give the log that it writes, NCCL_DEBUG=INFO"),
    (b"\x89PNG", "a picture (PNG); copy the text of the log into a file"),
    (b"\xff\xd8\xff", "a picture (JPEG); copy the text of the log into a file"),
    (b"%PDF", "a PDF document; copy the text of the log into a file"),
    (b"PK\x03\x04", "a zip archive; unpack it and name the logs in it"),
    (b"\xfd7zXZ\0", "compressed by xz; pipe it: `xz -dc FILE | nccl-bench doctor log -`"),
    (b"BZh", "compressed by bzip2; pipe it: `bzip2 -dc FILE | nccl-bench doctor log -`"),
    (b"\x04\x22\x4d\x18", "compressed by lz4; pipe it: `lz4 -dc FILE | nccl-bench doctor log -`"),
    (b"\x1f\x8b", "compressed by gzip twice; pipe it: `zcat FILE | nccl-bench doctor log -`"),
    (b"\x80\x02", PICKLE),
    (b"\x80\x03", PICKLE),
    (b"\x80\x04", PICKLE),
    (b"\x80\x05", PICKLE),
    (b"SQLite format 3\0", "a database (SQLite); a report of nsys has no log, give the output of the job"),
];

const PICKLE: &str = "a pickle of Python; dumps of PyTorch's flight recorder are for `nccl-bench doctor job \
                      --flight-recorder FILE`";

/// Returns the byte at the end of lines: a carriage return if the beginning has no line feed.
///
/// # Errors
/// A sentence about an input other than text, with a remedy.
pub(super) fn line_end(head: &[u8]) -> Result<u8, String> {
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Err(
            "it is text in UTF-16; convert it: `iconv -f UTF-16 -t UTF-8 FILE | nccl-bench doctor log -`"
                .to_owned(),
        );
    }
    if let Some((_, name)) = FORMS.iter().find(|(start, _)| head.starts_with(start)) {
        return Err(format!("it is not a log, but {name}"));
    }
    if head.get(257..262) == Some(b"ustar") {
        return Err("it is not a log, but an archive (tar); unpack it and name the logs in it".to_owned());
    }
    let start = &head[..head.len().min(HEAD)];
    // Files cut during a write have any number of NUL bytes.
    let (bytes, controls) =
        start.iter().filter(|byte| **byte != 0).fold((0, 0), |(bytes, controls), byte| {
            (bytes + 1, controls + usize::from(matches!(byte, 1..=6 | 14..=26 | 28..=31 | 127)))
        });
    if controls >= 8 && controls * 20 > bytes {
        return Err(
            "it is not text; give the output of the job with NCCL_DEBUG=INFO, as text or compressed by gzip \
             or zstd"
                .to_owned(),
        );
    }
    let is_wide = |first: usize| {
        let text = &start[first..];
        text.len() >= 32 && text.iter().step_by(2).all(|byte| *byte == 0)
    };
    if bytes * 3 > start.len() && start.len() > 33 && (is_wide(0) || is_wide(1)) {
        return Err(line_end(b"\xff\xfe").err().unwrap_or_default());
    }
    let is_mac = memchr(b'\r', head).is_some() && memchr(b'\n', head).is_none();
    Ok(if is_mac { b'\r' } else { b'\n' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_files_are_refused_with_what_to_give_instead() {
        let random: Vec<u8> =
            (0..4096_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut tar = b"log".to_vec();
        tar.resize(257, 0);
        tar.extend(b"ustar");
        let wide: Vec<u8> =
            "vm:1:1 [0] NCCL INFO x\r\n".repeat(4).bytes().flat_map(|byte| [byte, 0]).collect();
        for (head, expected) in [
            (&b"\x7fELF\x02\x01\x01\0"[..], "NCCL_DEBUG=INFO"),
            (b"\x80\x04\x95\x10", "doctor job --flight-recorder"),
            (b"\x89PNG\r\n", "picture"),
            (b"\xff\xfev\0m\0", "iconv -f UTF-16"),
            (&wide, "iconv -f UTF-16"),
            (b"PK\x03\x04", "unpack it"),
            (&tar, "unpack it"),
            (&random, "it is not text"),
        ] {
            let problem = line_end(head).unwrap_err();
            assert!(problem.contains(expected), "{head:?}: {problem}");
        }
    }

    #[test]
    fn text_with_nul_bytes_colours_and_other_encodings_is_text() {
        let mut nul = vec![0; 5000];
        nul.extend(b"vm:1:1 [0] NCCL INFO x\n");
        for head in [
            &b""[..],
            &nul,
            b"one\0two\0\nthree\n",
            b"\x1b[32mgreen\x1b[0m \x08\x08\n",
            b"\xb0\xa1\xb3\xaa\xb4\xd9 in EUC-KR\n",
            b"\r  9%\r 10%\n",
            &[0; 4096],
        ] {
            assert_eq!(line_end(head), Ok(b'\n'), "{head:?}");
        }
        assert_eq!(line_end(b"one\rtwo\r"), Ok(b'\r'));
    }
}
