"""Persistent state: model versions, jobs, schedules, measurements, uploads and artefacts.

    <store>/lock              held while a server runs
    <store>/braid.db          SQLite (WAL): schema.py
    <store>/schedules/, measurements/   braid.compiler.result_files
    <store>/uploads/          *.part while they come in, then <sha256> until imported
    <store>/artefacts/<sha256>/   what the importer wrote

``Store`` (store.py) is the way in. All database work runs on one thread, in the order it was
asked for, so what was answered "done" is on disk and what was asked later sees it.
"""
