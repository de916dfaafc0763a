//! Lines of the topology that list the paths of a GPU: `GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL)`.

/// A path in such a line: bus ids of both GPUs, and NCCL's name of the path.
pub(super) type Path<'a> = (&'a str, &'a str, &'a str);

/// The paths from a GPU to the others of its system. A message of another kind has none.
pub(super) fn read(message: &str) -> Vec<Path<'_>> {
    let Some((from, others)) = message.split_once(" :").filter(|(from, _)| from.starts_with("GPU/")) else {
        return Vec::new();
    };
    let Some((system, from)) = gpu(from) else { return Vec::new() };
    let mut paths = Vec::new();
    let mut words = others.split_whitespace();
    while let (Some(to), Some(path)) = (words.next(), words.next()) {
        let kind = path.strip_suffix(')').and_then(|path| path.rsplit('/').next());
        // A line that was cut ends with an incomplete path.
        let Some(kind) = kind.filter(|kind| kind.len() == 3) else { break };
        if let Some((_, to)) = gpu(to).filter(|&(other, to)| other == system && to != from) {
            paths.push((from, to, kind));
        }
    }
    paths
}

/// System and bus id: `GPU/0-60`.
fn gpu(word: &str) -> Option<(&str, &str)> {
    let (system, bus) = word.strip_prefix("GPU/")?.split_once('-')?;
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(system) && is_hex(bus)).then_some((system, bus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_between_gpus_are_read() {
        let line = "GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL) CPU/0-0 (1/24.0/PHB) GPU/1-80 (2/3.1/NET) ";
        assert_eq!(read(line), [("60", "70", "NVL")]);
        assert_eq!(read("GPU/0-60 :GPU/0-70 (2/370.8/NVL) GPU/0-80 (2/37"), [("60", "70", "NVL")]);
    }

    #[test]
    fn other_lines_have_no_paths() {
        for line in [
            "",
            "GPU/0-60",
            "NET/0-0 :GPU/0-60 (3/1.2/PHB)",
            "GPU/0-xx :GPU/0-70 (2/370.8/NVL)",
            "GPU/ :",
            " :",
        ] {
            assert_eq!(read(line), [], "{line}");
        }
    }
}
