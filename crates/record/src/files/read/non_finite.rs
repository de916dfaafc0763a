//! Replaces nccl-tests' infinities and NaNs by `null`. They are bare words (`inf`, `-nan`), and not valid
//! JSON.

use std::io::{self, Read};

/// Bytes per read.
const PIECE: usize = 1 << 16;

/// A reader of nccl-tests' text with `null` in place of these words.
pub(super) struct FiniteNumbers<R> {
    from: R,
    piece: Box<[u8]>,
    state: ScanState,
    /// The last piece, converted.
    ready: Vec<u8>,
    /// Number of bytes of `ready` already returned.
    taken: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum ScanState {
    Outside,
    String,
    /// After a backslash in a string.
    Escaped,
    /// After a minus, the beginning of a number or a word. It is held back until the next byte.
    Minus,
    /// After an `n`, the beginning of `null` or `nan`. It is held back until the next byte.
    Letter,
    /// In a replaced word. These letters are still to be skipped.
    Word(&'static [u8]),
}

impl<R: Read> FiniteNumbers<R> {
    pub(super) fn new(from: R) -> Self {
        let piece = vec![0; PIECE].into_boxed_slice();
        Self { from, piece, state: ScanState::Outside, ready: Vec::with_capacity(PIECE), taken: 0 }
    }

    /// Reads and converts the next piece. Leaves `ready` empty at the end of the text.
    fn refill_piece(&mut self) -> io::Result<()> {
        self.ready.clear();
        self.taken = 0;
        let length = self.from.read(&mut self.piece)?;
        for &byte in &self.piece[..length] {
            self.state = convert_byte(self.state, byte, &mut self.ready);
        }
        if length == 0 {
            // The text ends after a held-back byte.
            match std::mem::replace(&mut self.state, ScanState::Outside) {
                ScanState::Minus => self.ready.push(b'-'),
                ScanState::Letter => self.ready.push(b'n'),
                _ => {}
            }
        } else if self.ready.is_empty() {
            return self.refill_piece();
        }
        Ok(())
    }
}

/// Converts a byte: returns the next state, and appends the output to `out` as far as it is certain.
fn convert_byte(state: ScanState, byte: u8, out: &mut Vec<u8>) -> ScanState {
    match (state, byte) {
        (ScanState::String, b'\\') => {
            out.push(byte);
            return ScanState::Escaped;
        }
        (ScanState::String, b'"') => {
            out.push(byte);
            return ScanState::Outside;
        }
        (ScanState::String | ScanState::Escaped, _) => {
            out.push(byte);
            return ScanState::String;
        }
        (ScanState::Word([letter, rest @ ..]), _) if byte == *letter => return ScanState::Word(rest),
        (ScanState::Letter, b'a') => {
            out.extend(b"null");
            return ScanState::Word(b"n");
        }
        (ScanState::Letter, _) => out.push(b'n'),
        (ScanState::Minus, b'i' | b'n') | (ScanState::Outside | ScanState::Word(_), _) => {}
        (ScanState::Minus, _) => out.push(b'-'),
    }
    match byte {
        b'-' => ScanState::Minus,
        b'n' => ScanState::Letter,
        b'i' => {
            out.extend(b"null");
            ScanState::Word(b"nf")
        }
        b'"' => {
            out.push(byte);
            ScanState::String
        }
        _ => {
            out.push(byte);
            ScanState::Outside
        }
    }
}

impl<R: Read> Read for FiniteNumbers<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.ready.len() {
            self.refill_piece()?;
        }
        let ready = &self.ready[self.taken..];
        let length = ready.len().min(to.len());
        to[..length].copy_from_slice(&ready[..length]);
        self.taken += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reader that returns at most this many bytes at a time.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(to.len()).min(self.0.len());
            let (piece, rest) = self.0.split_at(length);
            to[..length].copy_from_slice(piece);
            self.0 = rest;
            Ok(length)
        }
    }

    fn replaced(text: &str, at_a_time: usize) -> String {
        let mut found = String::new();
        FiniteNumbers::new(Pieces(text.as_bytes(), at_a_time)).read_to_string(&mut found).unwrap();
        found
    }

    #[test]
    fn words_become_null_wherever_the_pieces_end() {
        for (text, expected) in [
            ("[inf,-inf,nan, -nan]", "[null,null,null, null]"),
            ("[null,true,false,-1e5,1e-5]", "[null,true,false,-1e5,1e-5]"),
            (r#"{"inf \" nan":"-inf\\","b":nan}"#, r#"{"inf \" nan":"-inf\\","b":null}"#),
            ("[1-", "[1-"),
            ("[n", "[n"),
            ("[-n", "[n"),
            ("[\"-", "[\"-"),
        ] {
            for at_a_time in 1..=text.len() {
                assert_eq!(replaced(text, at_a_time), expected, "{at_a_time}");
            }
        }
    }

    proptest! {
        #[test]
        fn json_stays_as_it_is(
            texts in proptest::collection::vec(".*", 0..4),
            numbers in proptest::collection::vec(any::<f64>(), 0..4),
            at_a_time in 1_usize..9,
        ) {
            let text = serde_json::json!({"texts": texts, "numbers": numbers, "none": null}).to_string();
            prop_assert_eq!(replaced(&text, at_a_time), text);
        }
    }
}
