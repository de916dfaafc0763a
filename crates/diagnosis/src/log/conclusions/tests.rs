use super::*;

#[test]
fn a_log_without_lines_of_nccl_cannot_tell() {
    let found = conclude(&Digest::default(), &Rules::built_in());
    assert_eq!(found.health(), crate::examination::Health::CannotTell);
    assert!(found.unseen[0].contains("NCCL_DEBUG=INFO"), "{:?}", found.unseen);
}
