//! FC-050: work proportional to what changes.

use super::*;

/// How many changed keys the last of `count` registrations on one node has.
fn changed_keys_after(count: usize) -> usize {
    let store = new_store();
    for i in 0..count {
        apply(&store, reg(&format!("service-{i}"), "n1"));
    }
    let feed = store.changes();
    apply(&store, reg("one-more", "n1"));
    take(&feed).keys.len()
}

#[test]
fn fc_050_one_more_service_on_a_node_changes_as_many_keys_as_the_first() {
    assert_eq!(changed_keys_after(2000), changed_keys_after(1));
    // An instance row, its service, kind, node, and the sets of names that it joins.
    assert!(changed_keys_after(1) <= 6);
}

#[test]
fn fc_050_one_more_instance_of_a_service_changes_as_many_keys_as_the_second() {
    let store = new_store();
    let feed = store.changes();
    let mut keys = Vec::new();
    for i in 0..500 {
        apply(&store, reg("web", &format!("n{i}")));
        keys.push(take(&feed).keys.len());
    }
    assert!(keys[1..].iter().all(|n| *n == keys[1]), "{keys:?}");
    for i in 0..500 {
        apply(
            &store,
            Op::DeregisterNode {
                node: (&format!("n{i}")).into(),
            },
        );
    }
    let tables = store.snapshot().tables;
    assert_eq!(
        (
            tables.nodes.size(),
            tables.instances.size(),
            tables.by_service.size(),
            tables.by_kind.size()
        ),
        (0, 0, 0, 0)
    );
}
