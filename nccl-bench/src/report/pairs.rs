//! The table of pairs of ranks on standard output, printed while they are measured.

use std::fmt::{Debug, Write as _};
use std::io::{self, Write};

use record::{Measurement, Rank, Run};

use super::Report;

/// Writes a table for each pair of ranks.
#[derive(Debug)]
pub struct PairTable<W> {
    out: W,
    ranks: Vec<Rank>,
    /// The pair of the current table.
    pair: Option<[usize; 2]>,
}

impl<W: Write> PairTable<W> {
    /// Writes the program, the test and the library.
    pub fn start_table(mut out: W, run: &Run) -> io::Result<Self> {
        let found = &run.provenance;
        let test = run.describe_pairs().unwrap_or_default();
        let library = format!("libfabric {} from {}", found.library_version, found.library_path);
        write!(out, "# {}\n# {test}; {library}\n", run.program)?;
        out.flush()?;
        Ok(Self { out, ranks: run.ranks.clone(), pair: None })
    }

    /// The head of a pair's table.
    fn pair_head(&self, pair: [usize; 2]) -> String {
        let mut text = "#\n".to_owned();
        for Rank { rank, host, domains, addresses, .. } in
            pair.iter().filter_map(|&rank| self.ranks.get(rank))
        {
            let (domains, addresses) = (domains.join(", "), addresses.join(" "));
            let _ = writeln!(text, "# Rank {rank} on {host}, {domains}: {addresses}");
        }
        let _ = writeln!(
            text,
            "{:>12} {:>10} {:>10} {:>10} {:>10} {:>9} {:>8}",
            "#  size (B)", "transfers", "time (us)", "min", "max", "GB/s", "#wrong"
        );
        text
    }
}

impl<W: Write + Debug + Send> Report for PairTable<W> {
    fn write_measurement(&mut self, measurement: &Measurement) -> io::Result<()> {
        let mut text = String::new();
        if let Some(pair) = measurement.pair
            && self.pair.replace(pair) != Some(pair)
        {
            text = self.pair_head(pair);
        }
        self.out.write_all((text + &format_row(measurement)).as_bytes())?;
        self.out.flush()
    }

    fn stop_report(&mut self, why: &str) -> io::Result<()> {
        // A message of several lines stays a comment.
        let why = why.lines().collect::<Vec<_>>().join("\n# ");
        writeln!(self.out, "# Not all sizes were measured: {why}")?;
        self.out.flush()
    }
}

fn format_row(measurement: &Measurement) -> String {
    let Measurement { bytes, operations, time_us, rounds_us, algbw_gbps, wrong, .. } = measurement;
    let min = rounds_us.iter().copied().fold(*time_us, f64::min);
    let max = rounds_us.iter().copied().fold(*time_us, f64::max);
    let wrong = wrong.map_or_else(|| "-".to_owned(), |wrong| wrong.to_string());
    format!(
        "{bytes:>12} {operations:>10} {time_us:>10.2} {min:>10.2} {max:>10.2} {algbw_gbps:>9.3} {wrong:>8}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_a_head_and_a_row_for_each_size() {
        let rank = |rank, domain: &str| Rank {
            rank,
            host: format!("node{rank}"),
            domains: vec![domain.to_owned()],
            addresses: ["a", "b"].map(|port| format!("{port}{rank}")).to_vec(),
            ..Rank::default()
        };
        let mut run = record::sample::full_run();
        run.provenance.transport = Some("tcp".to_owned());
        run.ranks = vec![rank(0, "eth0"), rank(1, "eth1")];
        let mut out = Vec::new();
        let mut table = PairTable::start_table(&mut out, &run).unwrap();
        let measurement = Measurement {
            pair: Some([0, 1]),
            bytes: 1000,
            operations: 90,
            time_us: 2.0,
            rounds_us: vec![4.0, 1.0, 2.0],
            algbw_gbps: 1.5,
            wrong: Some(0),
            ..Measurement::default()
        };
        table.write_measurement(&measurement).unwrap();
        table
            .write_measurement(&Measurement { rounds_us: Vec::new(), wrong: None, ..measurement.clone() })
            .unwrap();
        table.write_measurement(&Measurement { pair: Some([1, 0]), ..measurement }).unwrap();
        table.stop_report("interrupted by SIGINT").unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "# nccl-bench 0.1.0 (1a2b3c4d5e6f)");
        assert!(lines[1].starts_with("# bw over tcp, window 64, "), "{text}");
        assert!(
            lines[1].ends_with("; libfabric 2.28.9 from /usr/lib/x86_64-linux-gnu/libnccl.so.2"),
            "{text}"
        );
        let head = ["#", "# Rank 0 on node0, eth0: a0 b0", "# Rank 1 on node1, eth1: a1 b1"];
        assert_eq!(lines[2..5], head);
        let columns = "#  size (B)  transfers  time (us)        min        max      GB/s   #wrong";
        assert_eq!(lines[5].trim(), columns);
        let rows = [lines[6], lines[7]].map(|row| row.split_whitespace().collect::<Vec<_>>());
        assert_eq!(rows[0], ["1000", "90", "2.00", "1.00", "4.00", "1.500", "0"]);
        assert_eq!(rows[1], ["1000", "90", "2.00", "2.00", "2.00", "1.500", "-"]);
        assert_eq!(lines[9], head[2]);
        assert_eq!(lines[13], "# Not all sizes were measured: interrupted by SIGINT");
        assert_eq!(lines.len(), 14);
    }
}
