//! Registrations, their expansion, and the JSON form of all records.

mod records;
mod registrations;
mod round_trip;
