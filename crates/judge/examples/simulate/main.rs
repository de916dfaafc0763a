//! Simulates searches for slow nodes and edges in clusters of several sizes, and prints a table: found parts,
//! innocent parts that were named, pairs, rounds, and the cost beside a bisection.
//!
//! `cargo run -p nccl-bench-judge --example simulate -- 100` makes 100 searches of each kind; further numbers
//! choose the sizes of the clusters.

#![allow(clippy::expect_used, reason = "an example fails by panicking")]

mod cluster;

use std::time::Instant;

use cluster::{Cluster, Simulated};
use judge::pairs::{Part, Verdict};

/// Rounds that a bisection repeats with random halves, to verify what it has found.
const VERIFICATIONS: f64 = 3.0;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let searches = numbers.next().unwrap_or(20);
    let sizes: Vec<usize> = numbers.map(|number| usize::try_from(number).expect("a size")).collect();
    let sizes = if sizes.is_empty() { vec![16, 64, 1024, 16_384] } else { sizes };
    println!(
        "{searches} searches each; the bisection halves all nodes, and verifies {VERIFICATIONS:.0} times.\n\n\
         | nodes | slow | noise | found | innocent named | seen once | no conclusion | pairs | rounds | \
         node rounds / bisection | ms |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for nodes in sizes {
        for noise in [0.01, 0.003] {
            for (name, cluster) in list_clusters(nodes, noise) {
                print_row(name, &cluster, searches);
            }
        }
    }
}

fn list_clusters(nodes: usize, noise: f64) -> Vec<(&'static str, Cluster)> {
    let healthy = Cluster { nodes, noise, rounds: 7, ..Cluster::default() };
    let nodes_slow = |slow: &[(usize, f64)]| Cluster { slow_nodes: slow.to_vec(), ..healthy.clone() };
    // The first pair of the first round, which every survey has.
    let edge = [0, nodes - 1];
    vec![
        ("none", healthy.clone()),
        ("a node, 5 %", nodes_slow(&[(5, 0.05)])),
        ("a node, 3 %", nodes_slow(&[(5, 0.03)])),
        ("two nodes, 5 %", nodes_slow(&[(3, 0.05), (12, 0.05)])),
        ("a surveyed edge, 5 %", Cluster { slow_edges: vec![(edge, 0.05)], ..healthy.clone() }),
        ("an edge, 10 %", Cluster { slow_edges: vec![(edge, 0.1)], ..healthy.clone() }),
        (
            "a node, 5 %, and an edge, 10 %",
            Cluster { slow_edges: vec![(edge, 0.1)], ..nodes_slow(&[(5, 0.05)]) },
        ),
        ("a node, 5 %, in the survey only", Cluster { recovers: true, ..nodes_slow(&[(5, 0.05)]) }),
    ]
}

fn print_row(name: &str, cluster: &Cluster, searches: u64) {
    let begun = Instant::now();
    let all: Vec<Simulated> = (0..searches).map(|seed| cluster.search(seed)).collect();
    let ms = begun.elapsed().as_secs_f64() * 1e3 / searches as f64;
    let slow = cluster.slow_parts();
    let named =
        |each: &Simulated| -> Vec<Part> { each.conclusion.slow.iter().map(|part| part.part).collect() };
    let found: usize =
        all.iter().map(|each| slow.iter().filter(|part| named(each).contains(part)).count()).sum();
    let innocent: usize =
        all.iter().map(|each| named(each).iter().filter(|part| !slow.contains(part)).count()).sum();
    let with = |verdict| all.iter().filter(|each| each.conclusion.verdict == verdict).count();
    let mean = |number: &dyn Fn(&Simulated) -> usize| {
        all.iter().map(|each| number(each) as f64).sum::<f64>() / searches as f64
    };
    let (pairs, rounds) = (mean(&|each| each.pairs), mean(&|each| each.rounds));
    let bisection = cluster.nodes as f64 * ((cluster.nodes as f64).log2().ceil() + VERIFICATIONS);
    println!(
        "| {} | {name} | {} % | {found} of {} | {innocent} | {} | {} | {pairs:.0} | {rounds:.1} | {:.2} | {ms:.1} |",
        cluster.nodes,
        cluster.noise * 100.0,
        slow.len() as u64 * searches,
        with(Verdict::SeenOnce),
        with(Verdict::CannotTell),
        2.0 * pairs / bisection,
    );
}
