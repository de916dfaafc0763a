//! Folding of warnings with different numbers into one.

/// Length limit of a compared text.
const TEXT: usize = 256;

/// Returns the text without its numbers, addresses and generated names.
pub(super) fn fold_message(message: &[u8]) -> Vec<u8> {
    let message = &message[..message.len().min(TEXT)];
    let mut folded = Vec::with_capacity(message.len());
    let mut position = 0;
    while position < message.len() {
        let rest = &message[position..];
        let length = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        if length == 0 {
            folded.push(rest[0]);
            position += 1;
            continue;
        }
        let word = &rest[..length];
        if is_number(word) || folded.ends_with(b"/dev/shm/nccl-") {
            folded.push(b'#');
        } else {
            fold_digits(word, &mut folded);
        }
        position += length;
    }
    // Lists of numbers of any length: `# #` and `#,#` become `#`.
    let mut short: Vec<u8> = Vec::with_capacity(folded.len());
    for byte in folded {
        if byte == b'#' && matches!(short[..], [.., b'#', b' ' | b',' | b'.' | b':']) {
            short.pop();
        } else {
            short.push(byte);
        }
    }
    short
}

/// Returns true for hexadecimal numbers: `0x7f12`, `a5187fa2e`.
fn is_number(word: &[u8]) -> bool {
    let (digits, least) = match word.strip_prefix(b"0x") {
        Some(digits) => (digits, 1),
        None => (word, 6),
    };
    digits.len() >= least
        && digits.iter().all(u8::is_ascii_hexdigit)
        && (least == 1 || digits.iter().any(u8::is_ascii_digit))
}

fn fold_digits(word: &[u8], folded: &mut Vec<u8>) {
    for byte in word {
        if !byte.is_ascii_digit() {
            folded.push(*byte);
        } else if folded.last() != Some(&b'#') {
            folded.push(b'#');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_differ_in_numbers_are_equal() {
        let folded = |text: &str| String::from_utf8(fold_message(text.as_bytes())).unwrap();
        assert_eq!(
            folded("comm 0x55d9c752e8a0 rank 12 to 192.0.2.2<43210> failed"),
            folded("comm 0x7 rank 3 to 192.0.2.99<1> failed")
        );
        assert_eq!(
            folded("Error: failed to extend /dev/shm/nccl-XOvdks to 34210180 bytes"),
            folded("Error: failed to extend /dev/shm/nccl-55JmnR to 1 bytes")
        );
        assert_eq!(folded("ranks 1 2 3 4"), folded("ranks 1 2"));
        assert_ne!(folded("cannot open eth0"), folded("cannot open mlx5_0"));
        assert_eq!(folded("decade"), "decade");
        assert!(fold_message(&[b'x'; 100_000]).len() <= TEXT);
    }
}
