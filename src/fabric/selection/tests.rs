//! Every rule, and the lookups.

use super::*;

#[test]
fn names_parse_and_unknown_ones_list_the_known() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
    }
    let error = "rign".parse::<Algorithm>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "'rign' is none of board, direct, recursive-doubling, recursive-halving, bruck, binomial, pairwise, \
         rabenseifner, ring, hierarchical"
    );
    for collective in Collective::ALL {
        assert_eq!(collective.name().parse(), Ok(collective));
    }
    for medium in Medium::ALL {
        assert_eq!(medium.name().parse(), Ok(medium));
    }
    let error = "hosst".parse::<Medium>().unwrap_err().to_string();
    assert_eq!(error, "'hosst' is none of shared-memory, network, hosts");
    let error = "all_reduse".parse::<Collective>().unwrap_err().to_string();
    assert!(error.ends_with("all_to_all, all_to_all_v, gather, scatter"), "{error}");
}

fn topology(medium: Medium, ranks: usize, shared: bool) -> Topology {
    Topology { medium, ranks, hosts: ranks.div_ceil(2), shared }
}

#[test]
fn the_table_has_a_plan_for_every_operation_and_never_one_that_cannot_serve() {
    for collective in Collective::ALL {
        for medium in Medium::ALL {
            let last = |rule: &&Rule| {
                (rule.collective, rule.medium, rule.ranks, rule.bytes) == (collective, medium, ANY, ANY)
            };
            // For several hosts, the rules for a network follow.
            if medium != Medium::Hosts {
                let rule = RULES.iter().find(last).unwrap();
                assert!(rule.plan.algorithm.serves(collective, 7), "{rule:?}");
            }
            for ranks in 2..300 {
                for bytes in (0..40).map(|power| 1_usize << power) {
                    for shared in [false, true] {
                        let plan = plan(collective, &topology(medium, ranks, shared), bytes, None);
                        assert!(plan.algorithm.serves(collective, ranks), "{collective} {ranks} {bytes}");
                        assert!(shared || plan.algorithm != Algorithm::Board, "{collective} {ranks} {bytes}");
                        assert!(
                            medium == Medium::Hosts || plan.algorithm != Algorithm::Hierarchical,
                            "{collective} {ranks} {bytes}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_looked_up_once_is_what_the_table_says() {
    for medium in Medium::ALL {
        for (ranks, shared) in
            [2, 3, 4, 5, 8, 16, 17, 64].into_iter().flat_map(|ranks| [(ranks, false), (ranks, true)])
        {
            for wanted in Algorithm::ALL.map(Some).into_iter().chain([None]) {
                let topology = topology(medium, ranks, shared);
                let wanted = |collective| wanted.filter(|algorithm| algorithm.serves(collective, ranks));
                let table = |collective, bytes| plan(collective, &topology, bytes, wanted(collective));
                let plans = PlanTable::new(table);
                for collective in Collective::ALL {
                    let powers = (0..64).map(|power| 1_usize << power);
                    for bytes in powers
                        .chain([5000, 0, ANY - 1])
                        .flat_map(|size| [size.saturating_sub(1), size, size + 1])
                    {
                        let expected = table(collective, bytes);
                        assert_eq!(
                            plans.of(collective, bytes),
                            expected,
                            "{collective} {topology:?} {bytes}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn only_hierarchical_lines_have_an_algorithm_between_hosts_and_one_that_serves() {
    for Rule { collective, plan, medium, .. } in RULES {
        let hierarchical = plan.algorithm == Algorithm::Hierarchical;
        assert!(!hierarchical || *medium == Medium::Hosts, "{collective} {plan}");
        assert_eq!(plan.between.is_some(), hierarchical, "{collective} {plan}");
        assert!(
            plan.between.is_none_or(|between| between.serves_between(*collective)),
            "{collective} {plan}"
        );
    }
}

#[test]
fn an_algorithm_that_is_asked_for_is_taken_at_every_size() {
    for bytes in [8, 1 << 20, 1 << 30] {
        for (medium, wanted) in [
            (Medium::Network, Algorithm::Ring),
            (Medium::Hosts, Algorithm::Ring),
            (Medium::Hosts, Algorithm::Hierarchical),
        ] {
            for collective in Collective::ALL.into_iter().filter(|&of| wanted.serves(of, 4)) {
                let plan = plan(collective, &topology(medium, 4, false), bytes, Some(wanted));
                assert_eq!(plan.algorithm, wanted, "{collective}");
                assert_eq!(plan.between.is_some(), wanted == Algorithm::Hierarchical, "{collective}");
            }
        }
    }
}

#[test]
fn a_plan_says_what_is_done_between_hosts() {
    let topology = Topology { medium: Medium::Hosts, ranks: 8, hosts: 4, shared: false };
    let text = |bytes| plan(Collective::AllReduce, &topology, bytes, None).to_string();
    assert_eq!(text(8), "hierarchical, direct between hosts");
    assert_eq!(text(1 << 30), "hierarchical, ring between hosts, 3 x 1048576 bytes in flight");
    // The rules for a network, if the rules for hosts have nothing.
    let text = plan(Collective::Gather, &topology, 4096, None).to_string();
    assert_eq!(text, "direct, 2 x 1048576 bytes in flight");
}
