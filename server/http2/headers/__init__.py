"""Headers of calls and of answers.

reading   header blocks to the head of a call
writing   header blocks of answers
hpack     header compression
"""
