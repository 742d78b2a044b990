//! decode(serialize(x)) == x for every record, over generated documents.
